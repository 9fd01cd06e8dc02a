"""A small real chunk store over TCP on loopback: what `penstock check` is tried on. A fixture, no product.

    client ──open, alloc, commit──▶ manager        metadata under a lock
       └──chunk by chunk──▶ storage 0 … N−1        a file for each chunk

Each server is a process. Network cards and storage are emulated by deadlines on the clock: a frame or chunk
is served when the one before it was, so that a sleep that lasts too long does not add up. Three switches
spoil it, each a bug of a published store (L. B. Costa's thesis, 2014, section 5.3):

- constant_shuffle: the order of a stripe is drawn with one seed, so that all clients take the nodes in turn;
- coarse_lock: the whole call of the manager is under the lock of the metadata;
- short_backlog: a storage server listens with a backlog of 1, and drops what comes meanwhile; the kernel of
  the client, which waits in connect(), tries again after a second.
"""
