"""A file from the web: the one that was meant, whole, or none."""

import html
import re
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.request import Request, urlopen

from torch.hub import tqdm

from clustr_mm.errors import UserError, summary
from clustr_mm.outputs import complete_file

SILENCE = 30  # seconds without a byte after which a server is given up
_CHUNK = 1 << 20


class DownloadError(UserError):
    """What was asked for did not come."""


def download(
    url: str, path: Path, check: Callable[[Path], None] = lambda path: None
) -> None:
    """Download a file, which appears under its name when it is right.

    Args:
        url (str): Address of the file.
        path (Path): Where it goes. Only one process may do so at a time.
        check (Callable): Is given the file before it appears, and raises a
            `UserError` if it is not the one that was meant.

    Raises:
        DownloadError: If it did not come, or something else did.
    """
    try:
        with complete_file(path) as part:
            request = Request(url, headers={'User-Agent': 'clustr_mm'})
            with urlopen(request, timeout=SILENCE) as response:
                _save(response, part)
            check(part)
    # Among the latter: no host, refused, 404, silence.
    except (HTTPException, OSError) as error:
        raise DownloadError(summary(error, 200)) from error
    except UserError as error:
        raise DownloadError(str(error).replace(str(part), 'what came')) from (
            error
        )


def _save(response: HTTPResponse, part: Path) -> None:
    size = int(response.headers.get('Content-Length') or 0) or None
    with (
        open(part, 'wb') as file,
        tqdm(total=size, unit='B', unit_scale=True, unit_divisor=1024) as bar,
    ):
        while chunk := response.read1(_CHUNK):
            if not file.tell():
                _refuse_page(chunk)
            file.write(chunk)
            bar.update(len(chunk))
        came = file.tell()
    if size is not None and came != size:
        raise DownloadError(f'it was cut off after {came} of {size} bytes')


def _refuse_page(start: bytes) -> None:
    """A login or a question comes as a page in place of the file."""
    text = start[:10000].decode(errors='replace').lstrip()
    if re.match('<(!doctype html|html|head)', text, re.IGNORECASE):
        title = re.search('<title[^>]*>(.*?)</title', text, re.S | re.I)
        title = html.unescape(title[1]).strip() if title else 'without a title'
        raise DownloadError(
            f'a web page came in place of the file ({title}): the server '
            'asks something that a browser has to answer'
        )
