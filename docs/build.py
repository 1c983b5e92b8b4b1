"""The site, from notebooks, pages and docstrings: `python docs/build.py` writes it to `_docs`. It needs the extra
`docs`, and no network, neither here nor in the browser. `--serve` shows it at http://127.0.0.1:8000 afterwards."""
import os, re, shutil, subprocess, sys
from pathlib import Path
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]
import api, pages
from pages import markdown, notebook

PROC,SITE = ROOT/'_proc',ROOT/'_docs'
FLOORS = dict(base='Base', model='The model', text='Text', generate='Writing', train='Training', learn='Learners',
              explain='Explanations', recipes='Recipes', share='Sharing', roof='Roof')

def found(pattern):
    "The project's files of this kind, as paths from its root."
    files = (o for o in ROOT.glob(pattern) if '.ipynb_checkpoints' not in o.parts)
    return sorted(o.relative_to(ROOT).as_posix() for o in files)

def md(page): return re.sub(r'\.ipynb$', '.md', page)

def convert(out, known):
    "Every page; their titles by path."
    titles = {p:notebook(p, out, known) for p in found('nbs/**/*.ipynb')}
    texts = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'benchmarks/README.md',
             *found('benchmarks/results/*.md'), *found('docs/**/*.md'), *found('nbs/**/*.md')]
    return titles | {p:markdown(p, out, known) for p in texts}

def copy_linked(out):
    "Pictures, and the files that pages link to."
    for p in found('nbs/**/*.png') + found('nbs/**/*.svg') + found('benchmarks/results/**/*.png'): put(p, out)
    for page in out.rglob('*.md'):
        for link in re.findall(r'\]\(([^)\s#]+)', page.read_text(encoding='utf-8')):
            if re.match('[a-z]+:', link): continue
            target = (page.parent/link).resolve()
            if not target.exists() and target.is_relative_to(out.resolve()):
                source = ROOT/target.relative_to(out.resolve())
                if source.is_file(): put(source.relative_to(ROOT).as_posix(), out)

def put(page, out):
    (out/page).parent.mkdir(parents=True, exist_ok=True)
    name = page if '.' in Path(page).name else f'{page}.txt'
    shutil.copy(ROOT/page, out/name)

def write_api(out, titles):
    "The API's pages; the navigation."
    (out/'api').mkdir(parents=True, exist_ok=True)
    mods = api.rooms()
    def nb(mod):
        floor,_,room = mod.__name__.removeprefix('fastai_txf.').partition('.')
        there = found(f'nbs/?_{floor if room else "roof"}/*.ipynb')
        return next(md(p) for p in there if re.fullmatch(rf'\d+_{room or floor}', Path(p).stem))
    for m in mods: (out/'api'/api.file(m)).write_text(api.page(m, nb(m)), encoding='utf-8')
    (out/'api'/'index.md').write_text(api.index(mods), encoding='utf-8')
    groups = {}
    for m in mods:
        floor,_,room = m.__name__.removeprefix('fastai_txf.').partition('.')
        groups.setdefault(floor if room else 'roof', []).append({room or floor: f'api/{api.file(m)}'})
    return ['api/index.md', *({FLOORS[f]:o} for f,o in groups.items())]

def write_gallery(out, titles):
    "The first pictures of each page that has some."
    figures = [figure(p, Path(p).stem.replace('_', ' ')) for p in found('nbs/images/**/*.svg')]
    for p in dict.fromkeys(found('nbs/tutorials/*.ipynb') + found('nbs/6_explain/*.ipynb') + found('nbs/?_*/*.ipynb')):
        folder = (out/p).with_suffix('').with_name(f'{Path(p).stem}_files')
        largest = sorted(folder.glob('*.*'), key=lambda o: -o.stat().st_size)[:2] if folder.exists() else []
        page = Path(p).with_suffix('.html').as_posix()
        figures += [figure(o.relative_to(out).as_posix(), titles[p], page) for o in largest]
    txt = '\n'.join([f'{GALLERY}<div class="gallery">', *figures, '</div>\n'])
    (out/'gallery.md').write_text(txt, encoding='utf-8')

GALLERY = '# Gallery\n\nPictures that pages of this site make, each leading to the code that drew it.\n\n'

def figure(src, what, page=None):
    "A picture of the gallery; a link where a page draws it."
    img = f'<img src="{src}" alt="{what}" loading="lazy">'
    if page: img = f'<a href="{page}">{img}</a>'
    return f'<figure>{img}<figcaption>{what}</figcaption></figure>'

def nav(titles, api_nav):
    "What stands where: the workshop first."
    def entry(p): return {titles[p]: md(p)}
    workshop = found('nbs/workshop/*.md') + found('nbs/workshop/_exercises/*.ipynb')
    solutions = found('nbs/workshop/*.ipynb')
    folders = sorted({Path(p).parent for p in found('nbs/?_*/*.ipynb')})
    floors = [{FLOORS[f.name.partition('_')[2]]: [entry(p) for p in found(f'{f}/*.ipynb')]} for f in folders]
    howto = sorted(found('docs/howto/*.md'), key=lambda p: (not p.endswith('index.md'), titles[p]))
    more = [p for p in found('nbs/*.ipynb') if p != 'nbs/index.ipynb']
    return [{'Home':'README.md'},
            {'Learn':[*({'Workshop' if p.endswith('README.md') else titles[p]: md(p)} for p in workshop),
                      {'Solutions':[entry(p) for p in solutions]}, {'A look around':'nbs/index.md'},
                      {'The course':floors}, *map(entry, more)]},
            {'Tutorials':[entry(p) for p in found('nbs/tutorials/*.ipynb')]},
            {'How-to':[entry(p) for p in howto]},
            {'API':api_nav},
            {'Results':['benchmarks/README.md', {'All rows':[entry(p) for p in found('benchmarks/results/*.md')]}]},
            {'Gallery':'gallery.md'},
            {'About':[{'Changelog':'CHANGELOG.md'}, {'Contributing':'CONTRIBUTING.md'},
                      {'Bibliography':'docs/bibliography.md'}]}]

def build(proc=PROC, site=SITE):
    "Gather the pages under `proc` and let mkdocs write `site`, strictly."
    shutil.rmtree(proc, ignore_errors=True)
    out = proc/'pages'
    known = pages.entries()
    titles = convert(out, known)
    cfg = yaml.safe_load((HERE/'mkdocs.yml').read_text(encoding='utf-8'))
    api_nav = write_api(out, titles)
    write_gallery(out, titles)
    copy_linked(out)
    shutil.copy(HERE/'site.css', out/'site.css')
    cfg |= dict(docs_dir=str(out), site_dir=str(site), hooks=[str(HERE/'hooks.py')], nav=nav(titles, api_nav))
    (proc/'mkdocs.yml').write_text(yaml.safe_dump(cfg, allow_unicode=True, sort_keys=False), encoding='utf-8')
    env = {**os.environ, 'NO_MKDOCS_2_WARNING':'1', 'DISABLE_MKDOCS_2_WARNING':'true'}
    subprocess.run([sys.executable, '-m', 'mkdocs', 'build', '--strict', '-f', proc/'mkdocs.yml'], check=True, env=env)
    print(f'==> {site}/index.html; with search: python -m http.server -d {site}')

if __name__ == '__main__':
    build()
    if '--serve' in sys.argv: subprocess.run([sys.executable, '-m', 'http.server', '-d', SITE, '-b', '127.0.0.1'])
