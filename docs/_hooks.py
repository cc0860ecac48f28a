"""What MkDocs does to the pages; see mkdocs.yml."""

import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
# Whose tokens the explorer shows, with random weights.
EXPLORED = (
    'clustr/clustr_t_imagenet.py',
    'evit/evit_s_k07_imagenet.py',
    'tome/tome_s_r13_imagenet.py',
    'token_pooling/token_pooling_s_l3_imagenet.py',
    'dynamicvit/dynamicvit_s_k07_imagenet.py',
    'hvt/hvt_s1_imagenet.py',
)


def on_files(files, config):
    """Add the page to explore, as tools/visualize_tokens.py writes it."""
    page = _explorer(ROOT / 'docs/images/astronaut.jpg')
    files.append(File.generated(config, 'explorer.html', content=page))
    return files


def _explorer(photo: Path) -> str:
    import mmcv
    import torch
    from mmengine.logging import MMLogger

    from clustr_mm.analysis.models import build_model, read_config
    from clustr_mm.visualization.explorer import Picture, Subject, build_page
    from clustr_mm.visualization.gallery import read_image

    MMLogger.get_current_instance().setLevel('WARNING')
    image = read_image(photo)
    picture = Picture(photo.name, image)
    for path in EXPLORED:
        torch.manual_seed(0)
        model = build_model(read_config(str(ROOT / 'configs' / path)))
        subject = Subject(model, Path(path).name, 'random', (224, 224))
        picture.add(subject, mmcv.imresize(image, (224, 224)))
    return build_page([picture.script()])


def on_page_markdown(markdown: str, page, **kwargs) -> str:
    """Leave the text of links to files of the checkout that exist.

    They work where the repository is browsed, but the site has the pages
    alone. Those that do not exist stay, for MkDocs to complain of.
    """
    folder = Path(page.file.abs_src_path).parent

    def unlinked(link: re.Match) -> str:
        return link[1] if (folder / link[2]).exists() else link[0]

    return re.sub(r'\[([^]]+)\]\((\.\./[^)\s#]+)\)', unlinked, markdown)


def on_page_content(content: str, **kwargs) -> str:
    """Leave the roles out of docstrings, which Markdown does not know."""
    return re.sub(r':(?:class|func|meth):(?=<code>)', '', content)


def on_post_build(config) -> None:
    """Leave the search its index as a script, too.

    A page that is opened from the disk may load no other kind of file.
    """
    folder = Path(config.site_dir, 'search')
    index = (folder / 'search_index.json').read_text(encoding='utf-8')
    script = f'var __index = {index}'
    (folder / 'search_index.js').write_text(script, encoding='utf-8')
