"""Mends the source of xtcocotools 1.14.3 while it is built.

Any Python runs this file first if this folder is on its PYTHONPATH, and build
backends start in the folder of the source. What is mended:

- setup.py looks for what it has read by `exec` in `locals()`, which Python
  3.13 no longer fills (PEP 667).
- `NPY_OWNDATA` is gone from NumPy 2.3, and every function on masks with it;
  its other name is as old as NumPy 1.7.
"""

from pathlib import Path

MENDED = {
    'setup.py': {
        "version_file, 'exec'))": "version_file, 'exec'), globals())",
        'return locals()[': 'return globals()[',
    },
    'xtcocotools/_mask.pyx': {'np.NPY_OWNDATA': 'np.NPY_ARRAY_OWNDATA'},
}

if Path('xtcocotools/_mask.pyx').exists():
    for name, replacements in MENDED.items():
        text = before = Path(name).read_text()
        for old, new in replacements.items():
            text = text.replace(old, new)
        if text != before:
            Path(name).write_text(text)
