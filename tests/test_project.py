"Hygiene: metadata, packaging, the order of modules, names, documentation, notebooks"
import ast, builtins, dataclasses, importlib, importlib.util, inspect, json, os, re, shutil, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
from pathlib import Path
import pytest
from fastcore.docments import docments

root = Path(__file__).parents[1]
lib,nbs = root/'fastai_txf',root/'nbs'
notebooks = sorted(o for o in nbs.rglob('*.ipynb') if '.ipynb_checkpoints' not in o.parts)
sources = sorted(o for o in lib.rglob('*.py') if not o.stem.startswith('_'))
modules = ['.'.join(o.relative_to(lib).with_suffix('').parts) for o in sources]
max_lines = 25
skip_dirs = {'_proc','_docs','.git','.venv','.venv-lowest','build','dist','__pycache__','.pytest_cache','.hypothesis','.ipynb_checkpoints','models'}

def settings():
    "The project's `settings.ini`"
    p = ConfigParser(delimiters=['='])
    p.read_string((root/'settings.ini').read_text(encoding='utf-8'))
    return p['DEFAULT']

def project_files():
    "Paths, from the root, of all that is or will be tracked: git's list, or a walk where there is no git"
    cmd = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    try: names = subprocess.run(cmd, cwd=root, capture_output=True, text=True, check=True).stdout.split('\0')
    except (OSError, subprocess.CalledProcessError): names = [o.relative_to(root) for o in root.rglob('*')]
    files = {Path(o) for o in names if (root/o).is_file()}
    return sorted(o for o in files if not skip_dirs & set(o.parts) and not any(p.endswith('.egg-info') for p in o.parts))

def cells(nb, typ='code'):
    "The cells of type `typ` of the notebook at `nb`, sources joined"
    return [{**o, 'source': ''.join(o['source'])} for o in json.loads(nb.read_text(encoding='utf-8'))['cells'] if o['cell_type']==typ]

def default_exps(nb): return [m for c in cells(nb) for m in re.findall(r'^#\|\s*default_exp:?\s+(\S+)', c['source'], re.M)]
def source(mod): return (lib/f"{mod.replace('.', '/')}.py").read_text(encoding='utf-8')
def tree(mod): return ast.parse(source(mod))
def load(mod): return importlib.import_module(f'fastai_txf.{mod}')
def nb_name(o): return str(o.relative_to(nbs))

each_module   = pytest.mark.parametrize('mod', modules)
each_notebook = pytest.mark.parametrize('nb', notebooks, ids=nb_name)

# Metadata and packaging

def test_version():
    "`settings.ini`, the package, the changelog and the citation agree"
    import fastai_txf
    version = settings()['version']
    assert fastai_txf.__version__==version
    assert re.search(rf'^version: {re.escape(version)}$', (root/'CITATION.cff').read_text(encoding='utf-8'), re.M)
    newest = re.search(r'^## (\S+)', (root/'CHANGELOG.md').read_text(encoding='utf-8'), re.M)
    assert newest[1]==version

@pytest.fixture(scope='module')
def dists(tmp_path_factory):
    "The sdist, made from a copy of the project's files alone, and the wheel made from it"
    pytest.importorskip('build')
    src,out = tmp_path_factory.mktemp('src'),tmp_path_factory.mktemp('out')
    for o in project_files():
        (src/o).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root/o, src/o)
    res = subprocess.run([sys.executable, '-m', 'build', '--no-isolation', '-o', out, src], cwd=out, capture_output=True, text=True)
    assert res.returncode==0, f'python -m build failed:\n{res.stdout[-3000:]}{res.stderr[-3000:]}'
    return next(out.glob('*.tar.gz')),next(out.glob('*.whl'))

def test_sdist(dists):
    "It holds what a build needs"
    names = {o.partition('/')[2] for o in tarfile.open(dists[0]).getnames()}
    want = {'settings.ini','setup.py','pyproject.toml','README.md','LICENSE','constraints.txt','constraints-lowest.txt'}
    assert want <= names, f'missing from the sdist: {want-names}'

def workshop_files():
    "The workshop's pages and drawings, where the wheel holds them"
    pages = [o for o in project_files() if o.parts[:2]==('nbs','workshop') and len(o.parts)==3]
    drawings = [o for o in project_files() if o.parts[:2]==('nbs','drawings') and o.suffix=='.svg']
    return {f'{lib.name}/_workshop/{o.parts[1]}/{o.name}' for o in pages+drawings}

def test_workshop_from_wheel(dists, tmp_path):
    "`python -m fastai_txf.workshop` copies the workshop from an installed wheel, and replaces nothing"
    files = zipfile.ZipFile(dists[1])
    assert len(workshop_files()) > 16 and workshop_files() <= set(files.namelist())
    files.extractall(tmp_path/'site')
    def call():
        return subprocess.run([sys.executable, '-m', f'{lib.name}.workshop'], cwd=tmp_path, capture_output=True, text=True,
                              env={**os.environ, 'PYTHONPATH':str(tmp_path/'site')})
    res = call()
    assert res.returncode==0 and '10 exercises in workshop' in res.stdout, res.stderr
    made = tmp_path/'workshop'
    assert len(list(made.glob('*.ipynb')))==len(list((made/'solutions').glob('*.ipynb')))==10 and len(list((made/'drawings').glob('*.svg')))==6
    (made/'01_self_attention.ipynb').write_text('mine', encoding='utf-8')
    res = call()
    assert res.returncode==1 and 'would be replaced' in res.stderr and (made/'01_self_attention.ipynb').read_text(encoding='utf-8')=='mine'

def test_wheel(dists):
    "It holds every file of the package, nothing else, and the metadata of `settings.ini`"
    cfg,whl = settings(),zipfile.ZipFile(dists[1])
    info = f"{cfg['lib_name']}-{cfg['version']}.dist-info"
    files = {o for o in whl.namelist() if not o.startswith(info)}
    assert files-workshop_files() == {o.as_posix() for o in project_files() if o.parts[0]==lib.name}
    meta = whl.read(f'{info}/METADATA').decode()
    requires = {o.replace(' ','') for o in re.findall(r'^Requires-Dist: ([^;\n]+)$', meta, re.M)}
    assert requires == set(cfg['requirements'].split())
    assert f"Version: {cfg['version']}\n" in meta and f"Requires-Python: >={cfg['min_python']}\n" in meta

# What `nbdev-test --save` leaves of a fit

def script(name):
    "A script beside the notebooks, as a module"
    spec = importlib.util.spec_from_file_location(Path(name).stem, nbs/name)
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod

def test_fit_tables(tmp_path):
    "Bars of a console become fastai's table; what else was printed stays, other pages are left alone"
    text = ('█\repoch     train_loss  valid_loss  accuracy  time    \n█\r\rEpoch 1/2 : |███---| 50.00% [1/2 00:00<00:04]\r'
            '0         1.123354    1.058839    0.344444  00:04     \n█\r1         1.017707    0.882941    0.622222  00:04     \nright\n')
    page = tmp_path/'a.ipynb'
    output = dict(output_type='stream', name='stdout', text=[text])
    page.write_text(json.dumps(dict(cells=[dict(cell_type='code', source=['f'], outputs=[output])])), encoding='utf-8')
    tables = script('fit_tables.py')
    tables.convert(page)
    table,rest = json.loads(page.read_text(encoding='utf-8'))['cells'][0]['outputs']
    html = ''.join(table['data']['text/html'])
    assert re.findall('<th>(.*?)</th>', html) == ['epoch','train_loss','valid_loss','accuracy','time']
    assert re.findall('<td>(.*?)</td>', html)[-5:] == ['1','1.017707','0.882941','0.622222','00:04'] and rest['text'] == ['right\n']
    before = page.read_bytes()
    tables.convert(page)
    assert page.read_bytes() == before

# Drawings

def test_drawings():
    "The committed drawings are what their script makes, each stands in a page, none reaches outside its frame"
    draw = script('drawings/draw.py')
    made = {f().name:f().svg() for f in draw.ALL}
    assert made == {o.stem:o.read_text(encoding='utf-8') for o in (nbs/'drawings').glob('*.svg')}, 'python nbs/drawings/draw.py'
    pages = ' '.join(written(o) for o in notebooks)
    for name,svg in made.items():
        assert f'drawings/{name}.svg' in pages, f'no page shows {name}'
        width,height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
        for x,y in re.findall(r'(-?[\d.]+),(-?[\d.]+)', ' '.join(re.findall(r'points="([^"]+)"', svg))):
            assert 0 <= float(x) <= width and 0 <= float(y) <= height, f'{name}: {x},{y}'

# The rooms: floors, the order of modules, and what they may know of each other

def number(nb): return tuple(re.findall(r'\d+', str(nb.relative_to(nbs).with_suffix(''))))
def order():
    "Floor and number of each module's notebook"
    return {m:number(o) for o in notebooks if re.match(r'\d', nb_name(o)) for m in default_exps(o)}

def resolved(mod, node):
    "The full name of the module that an import in `mod` names"
    if not node.level: return node.module
    base = f'{lib.name}.{mod}'.split('.')[:-node.level]
    return '.'.join([*base, *([node.module] if node.module else [])])

def froms(mod): return [(resolved(mod, o), o) for o in ast.walk(tree(mod)) if isinstance(o, ast.ImportFrom)]

def imported(mod):
    "Modules of this package that `mod` imports, inside functions too"
    names = {m for full,o in froms(mod) for m in (full, *(f'{full}.{a.name}' for a in o.names))}
    names |= {a.name for o in ast.walk(tree(mod)) if isinstance(o, ast.Import) for a in o.names}
    return {m for m in modules if f'{lib.name}.{m}' in names}

@each_module
def test_rooms(mod):
    "A module lies in the folder of its notebook, and imports only from floors below and from lower numbers on its own"
    nums = order()
    if mod=='all': return
    assert mod in nums, f'{mod} comes from no numbered notebook'
    floor = next(o for o in notebooks if number(o)==nums[mod]).parent.name.partition('_')[2]
    assert mod.startswith(f'{floor}.') or floor=='roof' and ('.' not in mod or mod.startswith('workshop.'))
    wrong = [o for o in imported(mod) if o=='all' or nums[o] >= nums[mod]]
    assert not wrong, f'{mod} ({"/".join(nums[mod])}) imports {wrong}, which do not come before it'

def test_numbers():
    "No two notebooks of a floor have the same number"
    nums = [number(o) for o in notebooks if re.match(r'\d', nb_name(o))]
    assert len(nums)==len(set(nums))

@each_module
def test_no_private_import(mod):
    "A name with a leading underscore stays in its module"
    found = [f'{full}.{a.name}' for full,o in froms(mod) if full.startswith(lib.name) for a in o.names if private(a.name)]
    assert not found, f'{mod} imports {found}: what two rooms need has a public name in the lower one'

def defined(mod):
    "Names that a module gives a value itself"
    res = {o.name for o in ast.walk(tree(mod)) if isinstance(o, (ast.FunctionDef, ast.ClassDef))}
    return res | {o.id for o in ast.walk(tree(mod)) if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store)}

@each_module
def test_imported_from_its_room(mod):
    "A name comes from the module that defines it; `base.compat` passes on private ones"
    own = {f'{lib.name}.{m}':m for m in modules if m != 'base.compat'}
    found = [f'{full}.{a.name}' for full,o in froms(mod) if full in own for a in o.names
             if a.name != '*' and a.name not in defined(own[full])]
    assert not found, f'{mod} imports {found}, which are defined elsewhere'

def given_names(o):
    "The names that a statement of a module gives; what `patch` and `dispatch` add to another's name is not its own"
    if isinstance(o, ast.Assign): return [n.id for t in o.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    if not isinstance(o, (ast.FunctionDef, ast.ClassDef)): return []
    return [] if any(re.search('patch|dispatch', ast.unparse(d)) for d in o.decorator_list) else [o.name]

def test_one_meaning():
    "A name without an underscore means one thing in the package; `main` is what each command runs"
    where = {}
    for mod,name in {(mod, n) for mod in modules for o in tree(mod).body for n in given_names(o)}: where.setdefault(name, []).append(mod)
    twice = {k:sorted(v) for k,v in where.items() if len(v) > 1 and not k.startswith('_') and k != 'main'}
    assert not twice, f'{twice}: another name for all but one, or an underscore'

def private(name): return name.startswith('_') and not name.startswith('__')

def ours():
    "Attributes with a leading underscore that this package defines itself"
    res = set()
    for mod in modules:
        for o in ast.walk(tree(mod)):
            if isinstance(o, (ast.FunctionDef, ast.ClassDef)): res.add(o.name)
            if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store): res.add(o.id)
            if isinstance(o, ast.Attribute) and isinstance(o.ctx, ast.Store) and getattr(o.value, 'id', '') in ('self','cls'): res.add(o.attr)
            if isinstance(o, ast.keyword) and o.arg: res.add(o.arg)
    return res

@each_module
def test_no_foreign_private(mod):
    "Private names of torch and fastai are used in `base.compat` alone"
    if mod=='base.compat': return
    found,mine = [], ours()
    for full,o in froms(mod):
        if not full.startswith(lib.name): found += [f'{full}.{a.name}' for a in o.names if any(map(private, f'{full}.{a.name}'.split('.')))]
    for o in ast.walk(tree(mod)):
        if isinstance(o, ast.Import): found += [a.name for a in o.names if any(map(private, a.name.split('.')))]
        if isinstance(o, ast.Attribute) and private(o.attr) and o.attr not in mine: found.append(f'….{o.attr} in line {o.lineno}')
    found = [o for o in found if o.rpartition('.')[2].split(' ')[0] not in ('_default','_repr_html_')]
    assert not found, f'{mod}: {found} belong into base/compat, each with a canary'

@each_module
def test_no_private_of_other_rooms(mod):
    "What a room keeps to itself is called there alone, or by what is derived from it"
    nodes = [*ast.walk(tree(mod))]
    mine = {o.name for o in nodes if isinstance(o, (ast.FunctionDef, ast.ClassDef))} | {o.id for o in nodes if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store)}
    attrs = [o for o in nodes if isinstance(o, ast.Attribute)]
    mine |= {o.attr for o in attrs if isinstance(o.ctx, ast.Store)} | {'_repr_html_'}
    found = [f'{ast.unparse(o)} in line {o.lineno}' for o in attrs if private(o.attr) and o.attr not in mine and ast.unparse(o.value) not in ('self','cls','super()')]
    assert mod == 'base.compat' or not found, f'{mod}: {found}: give it a public name'

def test_changes():
    "What an import changes in fastai's learner and in `CSVLogger` is the list in `base.compat`"
    code = """if True:
        from fastai.text.all import *
        classes = {Learner, CSVLogger}
        def attrs(): return {f'{c.__name__}.{k}':v for c in classes for k,v in vars(c).items()}
        before = attrs()
        from fastai_txf.all import *
        from fastai_txf.base.compat import CHANGES
        print(sorted({k for k,v in attrs().items() if before.get(k) is not v and '._orig_' not in k} ^ {k for k in CHANGES if k.startswith(('Learner.','CSVLogger.'))}))
        """
    out = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True)
    assert out.stdout.strip()=='[]', out.stdout + out.stderr

def test_all():
    "`fastai_txf.all` gathers every public name of its modules, none hidden by another"
    ours = vars(load('all'))
    for m in imported('all'):
        mod = load(m)
        lost = [o for o in mod.__all__ if ours.get(o) is not getattr(mod, o)]
        assert not lost, f'{m}: {lost} missing from fastai_txf.all, or replaced by another module'

def test_shadows():
    "After `fastai.text.all`, only `SelfAttention` means something else, and no builtin does"
    theirs,ours = {},{}
    exec('from fastai.text.all import *', theirs)
    exec('from fastai_txf.all import *', ours)
    names = set(ours) - {'__builtins__'}
    shadowed = {o for o in names if o in theirs and theirs[o] is not ours[o]}
    assert shadowed == {'SelfAttention'}
    assert not names & set(dir(builtins)) - set(theirs)

# Documentation and length

def public(mod):
    "The functions and classes that `mod` defines and exports"
    m = load(mod)
    objs = [(o, getattr(m, o)) for o in getattr(m, '__all__', ())]
    return [(n,o) for n,o in objs if (inspect.isfunction(o) or inspect.isclass(o)) and o.__module__==m.__name__]

def own_params(f):
    "Parameters in `f`'s own definition: those taken over from a delegate are documented there"
    c = inspect.unwrap(f).__code__
    return c.co_varnames[:c.co_argcount+c.co_kwonlyargcount]

def undocumented(o):
    "Parameters of function `o`, or of the constructor of class `o`, without a comment"
    if dataclasses.is_dataclass(o): names,docs = [f.name for f in dataclasses.fields(o) if f.init],docments(o)
    else:
        f = vars(o).get('__init__') if inspect.isclass(o) else o
        if not inspect.isfunction(f): return []
        names,docs = own_params(f),docments(inspect.unwrap(f))
    return [n for n in names if n not in ('self','cls') and not n.startswith('_') and not docs.get(n)]

@each_module
def test_documented(mod):
    "Public functions and classes have a docstring, their parameters a docment"
    bare = [n for n,o in public(mod) if not (vars(o).get('__doc__') if inspect.isclass(o) else o.__doc__)]
    assert not bare, f'{mod}: no docstring in {bare}'
    missing = {n:ps for n,o in public(mod) if (ps := undocumented(o))}
    assert not missing, f'{mod}: parameters without a docment: {missing}'

def body_lines(f):
    "Lines from the first statement of function `f` after its docstring to its end"
    body = f.body[1:] if ast.get_docstring(f) is not None else f.body
    return f.end_lineno - body[0].lineno + 1 if body else 0

@each_module
def test_short(mod):
    "No function is long"
    funcs = [o for o in ast.walk(tree(mod)) if isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = {o.name:n for o in funcs if (n := body_lines(o)) > max_lines}
    assert not long, f'{mod}: functions of more than {max_lines} lines: {long}'

def test_line_lengths():
    "Code of modules is at most 120 characters wide, code of notebooks 100"
    def written(m): return re.sub(r'^__all__ = .*\n(?: {11}.*\n)*', '\n', source(m), flags=re.M) # that list is nbdev's
    long = [f'{m}:{i}' for m in modules for i,l in enumerate(written(m).splitlines(), 1) if len(l) > 120]
    wide = [f"{nb_name(o)} {c['id']}" for o in notebooks for c in cells(o) if any(len(l) > 100 for l in c['source'].splitlines())]
    assert not long+wide, '\n'.join(long+wide)

@each_module
def test_targets(mod):
    "At most two targets in one assignment"
    many = [o.lineno for o in ast.walk(tree(mod)) if isinstance(o, ast.Assign) and isinstance(o.value, ast.Tuple)
            and isinstance(o.targets[0], ast.Tuple) and len(o.targets[0].elts) > 2]
    assert not many, f'{mod}: lines {many}'

@each_module
def test_room_sizes(mod):
    "A module that cannot be held in one head is two modules"
    assert len(source(mod).splitlines()) <= 400

# Notebooks and text

def test_notebooks():
    "The numbered notebooks are there, each exports one module of its own, and none is kept from the tests"
    numbered = [o for o in notebooks if re.match(r'\d', nb_name(o))]
    exps = {nb_name(o): default_exps(o) for o in notebooks}
    assert numbered and all(len(exps[nb_name(o)])==1 for o in numbered), exps
    names = [m for ms in exps.values() for m in ms]
    assert len(names)==len(set(names)), f'two notebooks share a default_exp: {exps}'
    assert not list(nbs.rglob('.notest')), 'a .notest file keeps its folder out of nbdev-test'

def written(o): return o.read_text(encoding='utf-8') if o.suffix=='.md' else '\n'.join(c['source'] for c in cells(o, 'markdown'))

@pytest.mark.parametrize('o', [o for o in project_files() if o.suffix in ('.md','.ipynb')], ids=str)
def test_links(o):
    "What a page refers to inside the project exists"
    links = [a or b for a,b in re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', written(root/o))]
    inside = [l.split('#')[0] for l in links if not re.match('https?:|mailto:|#', l)]
    assert not [l for l in inside if not (root/o.parent/l).exists()]

@each_notebook
def test_cell_ids(nb):
    "Every cell has an id of its own"
    ids = [o.get('id') for o in json.loads(nb.read_text(encoding='utf-8'))['cells']]
    assert all(ids) and len(ids)==len(set(ids)), f'{nb.name}: {len(ids)-len(set(ids))} cell ids repeated, {ids.count(None)} missing'

@each_notebook
def test_directives(nb):
    "`#| export` below a cell's first code is not seen by nbdev"
    late = re.compile(r'^(?!#\||%|\s*$).*\n(?:.*\n)*?#\|\s*export', re.M)
    wrong = [o['id'] for o in cells(nb) if late.search(o['source'])]
    assert not wrong, f'{nb.name}: #| export is not at the top of cells {wrong}'

@each_notebook
def test_runs(nb):
    "`nbdev-test` runs cells of it"
    from nbdev.config import get_config
    from nbdev.test import nb_test_cells
    assert nb_test_cells(nb, get_config(nb.parent).tst_flags.split()), f'{nb.name}: nbdev-test runs nothing in it'

@each_notebook
def test_outputs(nb):
    "Kept outputs hold no error, escape code or progress bar"
    for c in cells(nb):
        txt = json.dumps([without_images(o) for o in c['outputs']])
        wrong = re.search(r'"output_type": "error"|\\u001b\[|<progress', txt)
        assert not wrong, f"{nb.name}: cell {c['id']} keeps {wrong[0]!r} in its output"

@each_notebook
def test_fits_are_tables(nb):
    "Kept outputs show a fit as fastai's table, not as the log of a console or as lists"
    printed = [''.join(o['text']) for c in cells(nb) for o in c['outputs'] if o['output_type']=='stream']
    bars = [o for o in printed if '\r' in o]
    lists = [o for o in printed if re.search(r"^\[\d+, [\d.]+, .*'\d+:\d+'\]$", o, re.M)]
    assert not bars, f'{nb.name}: python nbs/fit_tables.py {nb.relative_to(root)}'
    assert not lists or nb.stem in ('07_resume','index') or 'recipes' in str(nb), f'{nb.name}: {lists[0]}'

def without_images(o): return {**o, 'data': {k:v for k,v in o.get('data', {}).items() if not k.startswith('image/')}}

def text(f):
    "The text of project file `f`, without the images in a notebook's outputs; empty for what is not text"
    try: txt = (root/f).read_text(encoding='utf-8')
    except UnicodeDecodeError: return ''
    return re.sub(r'"image/[^"]*": "[^"]*"', '', txt) if f.suffix=='.ipynb' else txt

def test_text():
    "No path of one machine and no unfinished business in any file"
    bad = re.compile(r'(?<![\w.])/(?:work|root|tmp)/|\bTO(?:DO)\b|\bFIX(?:ME)\b')
    files = [o for o in project_files() if o.parts[:2] != ('nbs','workshop')]
    found = [f'{o}:{i}: {m[0]}' for o in files for i,s in enumerate(text(o).splitlines(), 1) if (m := bad.search(s))]
    assert not found, '\n'.join(found)
