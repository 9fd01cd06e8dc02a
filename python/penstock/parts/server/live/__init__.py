"""What the live page is fed with: parts that are looked at again, and the hub that sends what changed."""
