"""A small real chunk store over TCP on loopback, a test fixture for `penstock check`.

    client ──open, alloc, commit──▶ manager        metadata under a lock
       └──chunk by chunk──▶ storage 0 … N−1        a file for each chunk

Each server is a process. Network cards and storage are emulated by deadlines on the clock: the deadline of a
frame or chunk follows from that of the previous one, so that late wake-ups do not accumulate. Three switches
plant bugs of a published store (L. B. Costa's thesis, 2014, section 5.3):

- constant_shuffle: the order of a stripe has a constant seed, so that all clients use the nodes in turn;
- coarse_lock: the complete call of the manager is under the lock of the metadata;
- short_backlog: a storage server listens with a backlog of 1, and drops further connections; the kernel of
  the client, which waits in connect(), tries again after a second.
"""
