"""What a study's treatments would give: the station in virtual time."""
