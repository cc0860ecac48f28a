"""What MkDocs does to the pages; see mkdocs.yml."""

import re
from pathlib import Path


def on_page_markdown(markdown: str, page, **kwargs) -> str:
    """Leave the text of links to files of the checkout that exist.

    They work where the repository is browsed, but the site has the pages
    alone. Those that do not exist stay, for MkDocs to complain of.
    """
    folder = Path(page.file.abs_src_path).parent

    def unlinked(link: re.Match) -> str:
        return link[1] if (folder / link[2]).exists() else link[0]

    return re.sub(r'\[([^]]+)\]\((\.\./[^)\s#]+)\)', unlinked, markdown)
