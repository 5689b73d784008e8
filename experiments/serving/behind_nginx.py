"""nginx in front of the server, with ``examples/serving/nginx.conf``: answers, streams and limits.

    apt-get install nginx && python experiments/serving/behind_nginx.py

Ports and certificate are put into the example; all else is as it stands. Prints what was seen, and
fails where it is wrong.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import aiohttp
from attacks import COSTS, HOST, Model, started, write

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving" / "nginx.conf"


def configured(folder: Path, port: int, upstream: int) -> Path:
    """Write the example with other ports and a certificate of its own."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    text = EXAMPLE.read_text()
    text = text.replace("127.0.0.1:8080", f"{HOST}:{upstream}")
    text = text.replace("listen 443", f"listen {HOST}:{port}")
    text = re.sub(r"(\w+\.pem)", rf"{folder}/\1", text)
    config = folder / "nginx.conf"
    config.write_text(f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n{text}")
    return config


async def checks(url: str) -> None:
    """Ask through the proxy."""
    body = {"model": "ttamer", "messages": [{"role": "user", "content": "through nginx"}]}
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(key: str, **fields: object) -> tuple[int, str]:
            headers = {"authorization": f"Bearer {key}"}
            async with session.post(url, json=body | fields, headers=headers) as response:
                return response.status, await response.text()

        whole, stream = await ask("a"), await ask("a", stream=True)
        print("JSON", whole[0], "stream", stream[0], stream[1].count("data:"), "events")
        statuses = Counter([status for status, _ in await many(ask, "b", 60)])
        other = await ask("c")
        print("60 requests of one client at once:", dict(statuses), "another client:", other[0])
        large = await ask("d", padding="x" * 5 * 2**20)
        print("a body of 5 MiB:", large[0])
    seen = whole[0], stream[0], stream[1].endswith("data: [DONE]\n\n"), other[0], large[0]
    if seen != (200, 200, True, 200, 413) or not 21 <= statuses[200] <= 40 or 429 not in statuses:
        raise SystemExit("wrong")


async def many(ask: object, key: str, count: int) -> list[tuple[int, str]]:
    """Ask at once."""
    return list(await asyncio.gather(*(ask(key) for _ in range(count))))  # type: ignore[operator]


async def main() -> None:
    """Start the models, the server and nginx, and ask."""
    models = {name: Model(name) for name in COSTS}
    for model in models.values():
        await model.start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, upstream = await started(*write(folder, models), "uvicorn")
        listener = await asyncio.start_server(lambda *_: None, HOST, 0)
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        config = configured(folder, port, upstream)
        print(subprocess.run(["nginx", "-v"], capture_output=True, check=True).stderr.decode())  # noqa: S607
        nginx = subprocess.Popen(["nginx", "-c", str(config)])  # noqa: S603, S607
        try:
            await asyncio.sleep(2)
            await checks(f"https://{HOST}:{port}/v1/chat/completions")
        finally:
            nginx.terminate()
            nginx.wait()
            process.kill()
            process.wait()


if __name__ == "__main__":
    asyncio.run(main())
