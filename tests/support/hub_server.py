"""A Hugging Face hub on this machine: folders as models, with what huggingface_hub asks of it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Its models, how it fails, and what it was asked."""

    url: str = ""
    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cuts: int = 0  # so often the weights stop in the middle
    stalls: bool = False  # there, while this is true
    asked: list[str] = field(default_factory=list)  # method, path, range

    def commit_of(self, name: str) -> str:
        """40 hex digits that change with the files."""
        digest = hashlib.sha1(name.encode())
        for path in sorted(self.models[name].iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

    def fetched(self) -> list[str]:
        """The files whose content was asked for."""
        return [line.split()[1].rpartition("/")[2] for line in self.asked if "GET /O" in line]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve it on a free port of 127.0.0.1 in the block."""

    class Bound(_Handler):
        pass

    Bound.hub = hub
    with ThreadingHTTPServer(("127.0.0.1", 0), Bound) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        asked = self.headers.get("Range", "")
        self.hub.asked.append(f"{self.command} {unquote(place.path)} {asked}".strip())
        parts = unquote(place.path).strip("/").split("/")
        if parts == ["api", "agent-harnesses"]:  # which the library asks for in passing
            self.json({})
        elif parts[:2] == ["api", "models"]:
            self.about("/".join(parts[2:4]), parts[4:])
        else:
            self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def about(self, name: str, rest: list[str]) -> None:
        if not self.accepted(name, "/".join(rest[1:])):
            return
        if rest[:1] == ["tree"]:
            files = sorted(self.hub.models[name].iterdir())
            rows = [(path.name, path.stat().st_size, oid_of(path)) for path in files]
            self.json([{"type": "file", "path": p, "size": n, "oid": o} for p, n, o in rows])
        else:
            self.json({"id": name, "sha": self.hub.commit_of(name), "siblings": []})

    def accepted(self, name: str, revision: str) -> bool:
        if name not in self.hub.models:
            self.json({"error": "Repository not found"}, 401, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("", "main", "v1", self.hub.commit_of(name)):
            self.json({"error": "no revision"}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif name in self.hub.gated and not self.path.startswith("/api/models"):
            self.json({"error": "Access is restricted"}, 403, {"X-Error-Code": "GatedRepo"})
        else:
            return True
        return False

    def file(self, name: str, revision: str, file: str) -> None:
        if not self.accepted(name, revision):
            return
        path = self.hub.models[name] / file
        if not path.is_file():
            self.json({"error": "no file"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        first = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{oid_of(path)}"')
        self.send_header("X-Repo-Commit", self.hub.commit_of(name))
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if file.startswith(("model", "pytorch")) and self.hub.cuts:
            self.hub.cuts -= 1
            self.wfile.write(content[first : first + (len(content) - first) // 2])
            self.close_connection = True
            return
        if file.startswith("model") and self.hub.stalls:
            self.wfile.write(content[first : len(content) // 2])
            first = len(content) // 2
            while self.hub.stalls:
                time.sleep(0.05)
        with suppress(OSError):  # the other side is gone
            self.wfile.write(content[first:])

    def json(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for header, value in (headers or {}).items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def oid_of(path: Path) -> str:
    """What the hub calls the content of a file."""
    return hashlib.sha1(path.read_bytes()).hexdigest()
