"""Turns what `fit` prints in saved pages into the table that fastai shows in Jupyter.

`nbdev-test` runs a page without a front end, so fastai draws its progress bars with characters and
writes its table as text. `python nbs/fit_tables.py nbs/tutorials/dates.ipynb …` after
`nbdev-test --save` leaves the table alone."""
import html, json, re, sys
from pathlib import Path

HEADER = re.compile(r'epoch\s+train_loss\s')
ROW = re.compile(r'\d+\s+-?[\d.einfa+-]+\s')
BAR = re.compile(r'(Epoch \d+/\d+ : *)?\|[█-]+\|[^\]]*\]') # what is printed beside it stays

def shown(o):
    "A cell of the table as fastai writes it"
    return f'{o:.6f}' if isinstance(o, float) else str(o)

def table(names, rows):
    "The output of a cell that shows the rows of a fit under `names`"
    rows = [[shown(o) for o in row] for row in rows]
    def line(tag, values): return ''.join(f'      <{tag}>{html.escape(o)}</{tag}>\n' for o in values)
    head = f'  <thead>\n    <tr style="text-align: left;">\n{line("th", names)}    </tr>\n  </thead>\n'
    body = ''.join(f'    <tr>\n{line("td", row)}    </tr>\n' for row in rows)
    page = f'<table border="1" class="dataframe">\n{head}  <tbody>\n{body}  </tbody>\n</table>'
    plain = '\n'.join('  '.join(o) for o in [names, *rows])
    data = {'text/html':page.splitlines(keepends=True), 'text/plain':plain.splitlines(keepends=True)}
    return dict(output_type='display_data', data=data, metadata={})

def last_on_screen(line):
    "What a terminal leaves of a line that was written over"
    parts = [o for o in (BAR.sub('', o) for o in line.split('\r')) if o.strip()]
    told = [o for o in parts if HEADER.match(o) or ROW.match(o)]
    return told[-1] if told else parts[-1] if parts and '|' not in parts[-1] and '█' not in parts[-1] else ''

def tabled(text):
    "Outputs in place of the printed `text`: a table for each fit in it, and what else was printed"
    res,names,rows,rest = [], [], [], []
    def close():
        if rows: res.append(table(names, rows))
    for line in map(last_on_screen, text.split('\n')):
        if HEADER.match(line):
            close()
            names,rows = line.split(), []
        elif names and ROW.match(line): rows.append(re.split(r'\s{2,}|(?<=\S)(?=\d\d:\d\d$)', line.strip())) # a long sample leaves no space before the time
        elif line.strip(): rest.append(line.rstrip()+'\n')
    close()
    return res + ([dict(output_type='stream', name='stdout', text=rest)] if rest else [])

def convert(path):
    "Write the page `path` anew if a fit is printed in it"
    nb,changed = json.loads(path.read_text(encoding='utf-8')), False
    for c in nb['cells']:
        streams = [o for o in c.get('outputs', []) if o['output_type']=='stream' and o['name']=='stdout']
        text = ''.join(''.join(o['text']) for o in streams)
        if '\r' not in text or 'train_loss' not in text: continue
        c['outputs'] = tabled(text) + [o for o in c['outputs'] if o not in streams]
        changed = True
    if changed: path.write_text(json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True)+'\n', encoding='utf-8')

if __name__ == '__main__':
    for o in sys.argv[1:]: convert(Path(o))
