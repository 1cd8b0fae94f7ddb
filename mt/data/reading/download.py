"""Files fetched over HTTP: continued after an interruption, complete or not there at all."""

from __future__ import annotations

import errno
import json
import os
import string
import time
from collections.abc import Callable
from http.client import HTTPException, InvalidURL
from pathlib import Path
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tqdm import tqdm

from mt import __version__
from mt.errors import DataError
from mt.terminal import say

# Each attempt continues where the one before ended; seconds to wait before the second one, doubled
# each time.
ATTEMPTS = 4
WAIT = 2.0
DOWNLOADS = "downloads"  # the folder of what is not unpacked yet
TIMEOUT = 60.0  # seconds without a byte
BLOCK = 1 << 18
# Answers of a server that are worth another attempt.
PASSING = {408, 416, 429, 500, 502, 503, 504}


def fetch_json(url: str, what: str) -> Any:
    """The JSON that a URL answers with. Raises DataError, opening with `what`."""

    def read() -> bytes:
        with urlopen(_request(url), timeout=TIMEOUT) as answer:
            return bytes(answer.read())

    try:
        return json.loads(_repeated(read, url, what))
    except ValueError as error:
        raise DataError(
            f"{what}: {url} answers with text that is no JSON ({error}). Is something between "
            "this machine and the server, such as a page to log in to the network?"
        ) from None


def download(url: str, path: Path, what: str) -> None:
    """Fetch a file to `path`, by way of `path`.part, which the next call continues.

    It is continued only if the server still has the file that it began with (If-Range). Raises
    DataError, opening with `what`, when the server cannot be reached or does not give all of it,
    and OSError when the disk does not take it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    _repeated(lambda: _receive(url, part), url, what)
    part.with_suffix(".tag").unlink(missing_ok=True)
    part.replace(path)


def _receive(url: str, part: Path) -> None:
    """Append to `part` what is missing of the file; ConnectionError if some is missing after it."""
    tag = part.with_suffix(".tag")  # which version of the file the server has, by its own word
    before = part.stat().st_size if part.exists() and tag.exists() else 0
    condition = tag.read_text(encoding="utf-8") if before else ""
    headers = {"Range": f"bytes={before}-", "If-Range": condition} if condition else {}
    try:
        answer = urlopen(_request(url, headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == 416:  # the file is not longer than `part`: begin again
            part.unlink()
        raise
    with answer:
        continued = str(answer.headers["Content-Range"]).startswith(f"bytes {before}-")
        before = before if answer.status == 206 and continued else 0
        length = answer.headers["Content-Length"]
        total = before + int(length) if length else None
        size = f"{total:,} bytes" if total else "size not stated"
        say(f"{url}: {size}" + (f", continued after {before:,}" if before else ""))
        tag.write_text(answer.headers["ETag"] or answer.headers["Last-Modified"] or "", "utf-8")
        with (
            part.open("ab" if before else "wb") as file,
            tqdm(initial=before, total=total, unit="B", unit_scale=True, disable=None) as bar,
        ):
            while block := answer.read(BLOCK):
                file.write(block)
                bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and part.stat().st_size != total:
        raise ConnectionError(f"only {part.stat().st_size:,} of {total:,} bytes have come")


def _request(url: str, headers: dict[str, str] | None = None) -> Request:
    if not url.startswith(("https://", "http://")):  # urlopen would read files of this machine too
        raise DataError(f"{url}: must begin with https:// or http://; only these are fetched")
    own = {"User-Agent": f"mt/{__version__}", "Accept-Encoding": "identity"}
    return Request(quote(url, safe=string.punctuation), headers=own | (headers or {}))


def _repeated(act: Callable[[], Any], url: str, what: str) -> Any:
    """What `act` returns; faults of the network are tried again, up to `ATTEMPTS` times."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return act()
        except (URLError, HTTPException, ConnectionError, TimeoutError, SSLError) as error:
            if attempt == ATTEMPTS or _is_final(error):
                raise DataError(f"{what}: {_fault(error, url)}") from None
            wait = WAIT * 2 ** (attempt - 1)
            say(f"{url}: {_reason(error)}; trying again in {wait:g} s ({attempt} of {ATTEMPTS})")
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _is_final(error: Exception) -> bool:
    """Whether another attempt would fail as this one: no network, no such file, a wrong URL."""
    if isinstance(error, HTTPError):
        return error.code not in PASSING
    reason = getattr(error, "reason", error)
    lasting = isinstance(reason, gaierror | SSLCertVerificationError | InvalidURL)
    return lasting or getattr(reason, "errno", None) == errno.ENETUNREACH


def _fault(error: Exception, url: str) -> str:
    if isinstance(error, HTTPError) and error.code in (401, 403, 404, 410):
        return f"{url} answers {_reason(error)}. Is the name right, and is the file public?"
    return (
        f"{url} cannot be reached, or breaks off: {_reason(error)}. Is there a network here? "
        "Behind a proxy, set https_proxy. What has been received is kept; run the command again"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"{error.code} {error.reason}"
    return str(getattr(error, "reason", "") or error) or type(error).__name__
