"API pages: each public name, its docstring, and its docments as a table of name, type, default and meaning."
import enum, importlib, inspect, re
from fastcore.docments import docments, empty
from fastai.learner import Learner

# What is public

def rooms():
    "The modules that `fastai_txf.all` gathers, in its order."
    import fastai_txf.all as every
    src = inspect.getsource(every)
    return [importlib.import_module(f'fastai_txf.{m}') for m in re.findall(r'^from \.([\w.]+) import \*', src, re.M)]

def names(mod):
    "The public names of a module."
    return list(getattr(mod, '__all__', ()))

def added(mod):
    "What a module adds to fastai's learner and to the learners of other rooms: `(class, name, function)`."
    import fastai_txf.all as every
    classes = [Learner, *(o for o in vars(every).values() if inspect.isclass(o) and o.__module__ != mod.__name__)]
    for cls in dict.fromkeys(classes):
        for n,f in vars(cls).items():
            g = getattr(f, 'func', getattr(f, 'fget', f))
            if not n.startswith('_') and inspect.isfunction(g) and g.__module__==mod.__name__: yield cls,n,g

# Parameters

def sources(f):
    "A function and those whose parameters it takes over, the nearest first."
    seen = []
    while f is not None and f not in seen:
        seen.append(f)
        nxt = getattr(f, '__delwrap__', None)
        f = nxt.__init__ if inspect.isclass(nxt) else nxt
    return seen

def where_described(obj):
    "A function and its delegates; a class, its constructor with delegates, and the classes it derives from."
    if not inspect.isclass(obj): yield from sources(obj)
    else:
        for c in inspect.getmro(obj)[:-1]:
            yield c
            yield from sources(vars(c).get('__init__'))

def described(obj):
    "The docments of an object and of all that it delegates to."
    res = {}
    for o in where_described(obj):
        try: found = docments(o, full=True)
        except (TypeError, ValueError, OSError, SyntaxError): continue
        for k,v in found.items():
            if v.get('docment') and not res.get(k, {}).get('docment'): res[k] = v
    return res

def type_name(t):
    if t in (empty, inspect.Parameter.empty, None, type(None)): return ''
    return getattr(t, '__name__', str(t)).replace('typing.', '')

def default(v):
    if v is empty or v is inspect.Parameter.empty: return ''
    if inspect.isclass(v) or inspect.isfunction(v): return f'`{v.__name__}`'
    txt = v.name if isinstance(v, enum.Enum) else repr(v)
    return f'`{txt}`' if len(txt) <= 60 and '\n' not in txt and ' at 0x' not in txt else f'`{type(v).__name__}`'

def cell(s): return re.sub(r'\s+', ' ', str(s or '')).replace('|', '\\|').strip()

def parameters(obj):
    "The `(name, type, default, meaning)` of each parameter."
    try: sig = inspect.signature(obj)
    except (TypeError, ValueError): return []
    docs,rows = described(obj), []
    for n,p in sig.parameters.items():
        if n in ('self','cls') or n.startswith('_'): continue
        if p.kind is p.VAR_KEYWORD and not docs.get(n, {}).get('docment'): continue
        d = docs.get(n, {})
        star = {p.VAR_POSITIONAL:'*', p.VAR_KEYWORD:'**'}.get(p.kind, '')
        anno = p.annotation if p.annotation is not p.empty else d.get('anno')
        kind = type_name(anno) or (type(p.default).__name__ if isinstance(p.default, (bool,int,float,str)) else '')
        rows.append((star+n, kind, default(p.default), cell(d.get('docment'))))
    return rows

def returned(obj):
    "The comment behind the signature: what comes back."
    try: src = inspect.getsource(inspect.unwrap(obj))
    except (TypeError, OSError): return ''
    m = re.search(r'^[^\n#]*\)\s*(?:->\s*([^:#\n]+))?:[ \t]*#[ \t]*(.+)$', src, re.M)
    first = re.search(r'^\s+(?:"|return\b|[rf]?\'{1,3})', src, re.M)
    if not m or first and m.start() > first.start(): return ''
    return ': '.join(o for o in (f'`{m[1].strip()}`' if m[1] else '', cell(m[2])) if o)

# Pages

def doc(obj): return inspect.cleandoc(obj.__doc__).replace('\n', '  \n') if getattr(obj, '__doc__', None) else ''

def header(name, obj):
    "The call as one writes it, without the defaults: those stand in the table."
    try: ps = inspect.signature(obj).parameters.values()
    except (TypeError, ValueError): return name
    def shown(p): return {p.VAR_POSITIONAL:'*', p.VAR_KEYWORD:'**'}.get(p.kind, '') + p.name
    args = [shown(p) for p in ps if p.name not in ('self','cls')]
    line = f"{name}({', '.join(args)})"
    if len(line) <= 90: return line
    rows,row = [], '   '
    for a in args:
        if len(row) + len(a) > 86: rows,row = [*rows, row], '   '
        row += f' {a},'
    return f'{name}(\n' + '\n'.join([*rows, row.rstrip(',')]) + '\n)'

def params_table(obj):
    rows = parameters(obj)
    if not rows: return ''
    head = '| name | type | default | meaning |\n|---|---|---|---|\n'
    return head + '\n'.join(f"| `{n}` | {f'`{cell(t)}`' if t else ''} | {d} | {m} |" for n,t,d,m in rows) + '\n'

def callable_section(name, obj, level=2):
    "A function or a class, and what it takes."
    back = '' if inspect.isclass(obj) else returned(obj)
    parts = [f"{'#'*level} {name} {{ #{name.lower().replace('.', '-')} data-toc-label='{name}' }}",
             f'```python\n{header(name, obj)}\n```', doc(obj), params_table(obj), f'**Returns** {back}' if back else '']
    return '\n\n'.join(o for o in parts if o) + '\n'

def methods(cls):
    "The public methods that a class defines itself."
    for n,f in vars(cls).items():
        if n.startswith('_'): continue
        g = f.__func__ if isinstance(f, (classmethod, staticmethod)) else f.fget if isinstance(f, property) else f
        if inspect.isfunction(g) and g.__module__==cls.__module__: yield n,f,g

def class_section(name, cls):
    "A class with its methods."
    parts = [callable_section(name, cls)]
    for n,f,g in methods(cls):
        at = f'{name.lower()}-{n.lower()}'
        if isinstance(f, property): parts.append(f'### {name}.{n} {{ #{at} }}\n\n*property* · {doc(g)}\n')
        elif doc(g) or parameters(g): parts.append(callable_section(f'{name}.{n}', g, 3))
    return '\n'.join(parts)

def value_section(name, v):
    "A table of choices, or another value."
    head = f'## {name} {{ #{name.lower()} }}\n\n'
    if not isinstance(v, dict): return head + f'`{cell(repr(v))[:300]}`\n'
    lines = [f'| `{k}` | {stands_for(o)} |' for k,o in v.items()]
    return head + '| key | stands for |\n|---|---|\n' + '\n'.join(lines) + '\n'

def stands_for(o):
    "A choice in a table, by its name where it has one."
    if getattr(o, '__name__', '<lambda>') != '<lambda>': return f'`{o.__name__}`'
    return 'a function' if ' at 0x' in repr(o) else f'`{cell(repr(o))[:140]}`'

def section(name, obj):
    if inspect.isclass(obj): return class_section(name, obj)
    return callable_section(name, obj) if callable(obj) else value_section(name, obj)

def page(mod, nb):
    "The page of a module, from the notebook `nb`."
    short = mod.__name__.removeprefix('fastai_txf.')
    parts = [f'# {short}', f'`from fastai_txf.all import *` brings all of this; the module is `{mod.__name__}`. '
                           f'Derived and shown at work in [its notebook](../{nb}).']
    parts += [section(n, getattr(mod, n)) for n in names(mod)]
    shown = {n for n in names(mod)}
    parts += [callable_section(f'{cls.__name__}.{n}', f) for cls,n,f in added(mod) if n not in shown]
    return '\n\n'.join(parts) + '\n'

def index(mods):
    "All names in one table."
    rows = [(n, getattr(mod, n), mod) for mod in mods for n in names(mod)]
    rows += [(f'{c.__name__}.{n}', f, mod) for mod in mods for c,n,f in added(mod) if n not in names(mod)]
    lines = [f"| [`{n}`]({file(mod)}#{n.lower().replace('.', '-')}) | {first_line(o)} | {mod.__name__.split('.')[1]} |"
             for n,o,mod in sorted(rows, key=lambda r: r[0].lower())]
    return f'{INTRO}\n\n| name | what it is | floor |\n|---|---|---|\n' + '\n'.join(lines) + '\n'

INTRO = """# API

Every public name. `from fastai.text.all import *`, then `from fastai_txf.all import *`, brings them all. Each name can
be searched for; its parameters stand in a table of name, type, default and meaning."""

def first_line(o):
    "What an object is, in a line."
    if not callable(o): return 'a table of choices' if isinstance(o, dict) else 'a value'
    return cell(doc(o).split('  \n')[0])

def file(mod): return mod.__name__.removeprefix('fastai_txf.').replace('.', '_') + '.md'
