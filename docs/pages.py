"Notebooks as pages of the site: code, outputs, pictures; tests folded; citations linked."
import ast, base64, json, posixpath, re, unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Citations

def key(name, year):
    "The anchor of a citation: the first author without accents, and the year."
    plain = unicodedata.normalize('NFKD', name).encode('ascii', 'ignore').decode()
    return plain.lower().replace("'", '') + year

def entries(file=ROOT/'docs'/'bibliography.md'):
    "The anchors of the bibliography."
    return set(re.findall(r'<a id="(\w+)">', file.read_text(encoding='utf-8')))

NAME = r"[A-ZÀ-Ý][\w'’-]+"
CITED = re.compile(rf'(?P<name>{NAME})(?P<others> et al\.| (?:and|&) {NAME})?,? '
                   r'(?P<open>\()?(?P<year>(?:19|20)\d\d)\b(?P<close>\))?')

def citations(txt):
    "The `(text, key)` of each citation in a text: one author, two, or et al., and a year."
    for m in CITED.finditer(txt): yield m[0], key(m['name'], m['year']), bool(m['others'])

FENCE,LINK = r'```.*?```|~~~.*?~~~|`[^`\n]*`', r'!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)]*\)'
SKIP = rf'(?P<skip>{FENCE}|{LINK}|\$\$.*?\$\$|\$[^$\n]+\$|<[^>]+>|^#.*?$)'

def link_citations(txt, to, known):
    "A page with each citation that the bibliography knows linked to it, outside of code, formulas, links and headings."
    def one(m):
        if m['skip'] or key(m['name'], m['year']) not in known: return m[0]
        tail = ')' if m['close'] and not m['open'] else ''
        return f"[{m[0].removesuffix(tail)}]({to}#{key(m['name'], m['year'])}){tail}"
    return re.sub(SKIP + '|' + CITED.pattern, one, txt, flags=re.S | re.M)

# Code: what is a test

def is_test(node):
    "Whether a statement only tests: an assertion, a call of `test_…`, or a loop or block of such."
    if isinstance(node, ast.Assert): return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        f = node.value.func
        return getattr(f, 'id', getattr(f, 'attr', '')).startswith('test_')
    return isinstance(node, (ast.For, ast.With, ast.If)) and all(map(is_test, node.body))

def split_tests(code):
    "A cell's code, and the tests that end it."
    try: body = ast.parse(code).body
    except SyntaxError: return code, ''
    at = len(body)
    while at and is_test(body[at-1]): at -= 1
    if at==len(body): return code, ''
    lines = code.split('\n')
    start = body[at].lineno - 1
    while start and lines[start-1].lstrip().startswith('#'): start -= 1
    return '\n'.join(lines[:start]).rstrip(), '\n'.join(lines[start:])

def fence(code, lang='python'):
    ticks = '`'*max(3, 1+max(map(len, re.findall('`+', code)), default=0))
    return f'{ticks}{lang}\n{code}\n{ticks}\n'

def folded(code):
    "Tests behind one line."
    n = len(re.findall(r'^\s*(?:test_\w+|assert)\b', code, re.M))
    name = 'tests' if n > 1 else 'test'
    return f'<details class="tests" markdown="1"><summary>{name}</summary>\n\n{fence(code)}\n</details>\n'

# Outputs

def joined(s): return s if isinstance(s, str) else ''.join(s)

def picture(data, mime, at, stem, cell_id):
    "An image as a file beside the page."
    ext = {'image/png':'png', 'image/svg+xml':'svg', 'image/jpeg':'jpg'}[mime]
    file = at/f'{stem}_files'/f'{cell_id}.{ext}'
    n = 1
    while file.exists(): file,n = file.with_name(f'{cell_id}_{n}.{ext}'), n+1
    file.parent.mkdir(parents=True, exist_ok=True)
    raw = joined(data[mime])
    if ext=='svg': file.write_text(raw, encoding='utf-8')
    else: file.write_bytes(base64.b64decode(raw))
    return f'![picture made by the code above]({stem}_files/{file.name}){{ .output-picture }}\n'

def printed(txt): return f'<div class="output" markdown="1">\n\n{fence(txt, "text")}\n</div>\n'
def no_gaps(txt): return re.sub(r'\n\s*\n', '\n', txt)

def output(o, at, stem, cell_id, drawn):
    "One output of a cell as markdown."
    if o['output_type']=='stream': return printed(joined(o['text']).rstrip())
    data = o.get('data', {})
    mime = next((m for m in ('image/png','image/svg+xml','image/jpeg') if m in data), None)
    if mime: return picture(data, mime, at, stem, cell_id)
    if 'text/html' in data: return f'<div class="output html">\n{no_gaps(joined(data["text/html"]))}\n</div>\n'
    if 'text/markdown' in data: return joined(data['text/markdown']) + '\n'
    txt = joined(data.get('text/plain', ''))
    if not txt or drawn and txt.startswith(('<','[<','(<','array([<')): return ''
    return printed(txt)

# Cells and pages

DIRECTIVE = re.compile(r'^#\|\s*(\w+).*\n?', re.M)

def code_cell(c, at, stem):
    "A code cell and its outputs; nothing where it is hidden or only says where to export."
    src = joined(c['source'])
    marks = set(DIRECTIVE.findall(src))
    code = DIRECTIVE.sub('', src).strip()
    if marks & {'hide','default_exp'} or not code: return ''
    head,tests = split_tests(code)
    outs = c.get('outputs', [])
    drawn = any(m.startswith('image/') for o in outs for m in o.get('data', {}))
    res = fence(head) if head else ''
    if marks & {'export','exporti','exports'} and head: res = f'<div class="exported" markdown="1">\n\n{res}\n</div>\n'
    shown = [output(o, at, stem, c['id'], drawn) for o in outs]
    if not head: return '\n'.join([folded(tests), *shown])
    return '\n'.join([res, *shown, *([folded(tests)] if tests else [])])

def first_page(folder):
    "What a reader of a folder sees first."
    for o in ('README.md','index.ipynb'):
        if (folder/o).exists(): return o
    return min(folder.glob('*.ipynb'), default=min(folder.glob('*.*'))).name

def fix_links(txt, page):
    "Links to notebooks lead to their pages, links to folders to the first page, marks of headings to the site's."
    def one(m):
        link,mark = (m[2].split('#', 1) + [''])[:2]
        if re.match(r'[a-z]+:', link): return m[0]
        target = (ROOT/page).parent/link
        if link and target.is_dir(): link = posixpath.join(link, first_page(target))
        return f"{m[1]}{re.sub(r'[.]ipynb$', '.md', link)}{'#' + anchor(mark) if mark else ''})"
    return re.sub(r'(\]\()([^)\s]+)\)', one, txt)

def anchor(mark): return mark if re.fullmatch(r'[a-z0-9_]+', mark) else re.sub(r'[^\w-]', '', mark.lower()).strip('-')

def subtitle(txt): return re.sub(r'\A(# .+\n)\s*> (.+)', r'\1\n*\2*{ .subtitle }', txt)

def up(page): return '../'*page.count('/')

def notebook(page, out, known):
    "Write the notebook at `page` (a path from the root) as markdown under `out`; its title."
    nb = json.loads((ROOT/page).read_text(encoding='utf-8'))
    file = (out/page).with_suffix('.md')
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for c in nb['cells']:
        if c['cell_type']=='code': parts.append(code_cell(c, file.parent, file.stem))
        elif c['cell_type']=='markdown': parts.append(fix_links(joined(c['source']), page))
    txt = subtitle('\n\n'.join(o.strip('\n') for o in parts if o).lstrip())
    file.write_text(link_citations(txt, f'{up(page)}docs/bibliography.md', known) + '\n', encoding='utf-8')
    return title(txt) or file.stem

def markdown(page, out, known):
    "The same for a markdown page."
    file = out/page
    file.parent.mkdir(parents=True, exist_ok=True)
    txt = fix_links((ROOT/page).read_text(encoding='utf-8'), page)
    if page != 'docs/bibliography.md': txt = link_citations(txt, f'{up(page)}docs/bibliography.md', known)
    file.write_text(re.sub(r'<img src="([^"]+)" alt="([^"]+)"[^>]*>', r'![\2](\1)', txt), encoding='utf-8')
    return title(txt)

def title(txt):
    m = re.search(r'^# +(.+)$', txt, re.M)
    return m and re.sub(r'[`*]', '', m[1]).strip()
