"Packaging: all that it says stands in `settings.ini`"
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup, find_packages

here,parser = Path(__file__).parent,ConfigParser(delimiters=['='])
parser.read_string((here/'settings.ini').read_text(encoding='utf-8'))
cfg = parser['DEFAULT']

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'].split(),
    long_description=(here/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    project_urls={k.capitalize(): cfg[k] for k in ('repository','documentation') if k in cfg},
    author=cfg['author'], license_expression=cfg['license'], license_files=['LICENSE'],
    packages=find_packages(include=[cfg['lib_name'], f"{cfg['lib_name']}.*"]),
    python_requires=f">={cfg['min_python']}", install_requires=cfg['requirements'].split(),
    extras_require={k.removesuffix('_requirements'): v.split() for k,v in cfg.items() if k.endswith('_requirements')},
)
