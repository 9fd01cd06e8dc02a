"""HTTP requests by `httpx`, without loading the certificates of all authorities.

`httpx` reads these for each request without a client, which takes 20 ms of processor time; the servers of the
tests do not use TLS.
"""

from __future__ import annotations

from functools import partial

import httpx

delete = partial(httpx.delete, verify=False)
get = partial(httpx.get, verify=False)
post = partial(httpx.post, verify=False)
put = partial(httpx.put, verify=False)
request = partial(httpx.request, verify=False)
