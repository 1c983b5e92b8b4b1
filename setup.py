"Packaging: all that it says stands in `settings.ini`"
import shutil
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup, find_packages
from setuptools.command.build_py import build_py

here,parser = Path(__file__).parent,ConfigParser(delimiters=['='])
parser.read_string((here/'settings.ini').read_text(encoding='utf-8'))
cfg = parser['DEFAULT']

class WithWorkshop(build_py):
    "Lays the workshop's pages and drawings into the package, where `python -m fastai_txf.workshop` finds them"
    def run(self):
        super().run()
        if self.editable_mode: return
        to = Path(self.build_lib)/cfg['lib_name']/'_workshop'
        for name,kinds in (('workshop', ('*.ipynb','*.md')), ('drawings', ('*.svg',))):
            (to/name).mkdir(parents=True, exist_ok=True)
            for o in (o for kind in kinds for o in (here/'nbs'/name).glob(kind)): shutil.copy(o, to/name)

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'].split(),
    long_description=(here/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    project_urls={k.capitalize(): cfg[k] for k in ('repository','documentation') if k in cfg},
    author=cfg['author'], license_expression=cfg['license'], license_files=['LICENSE'],
    packages=find_packages(include=[cfg['lib_name'], f"{cfg['lib_name']}.*"]), cmdclass=dict(build_py=WithWorkshop),
    python_requires=f">={cfg['min_python']}", install_requires=cfg['requirements'].split(),
    extras_require={k.removesuffix('_requirements'): v.split() for k,v in cfg.items() if k.endswith('_requirements')},
)
