"The drawings of the course, as SVG: `python nbs/drawings/draw.py` writes them beside this file."
from pathlib import Path

INK,FAINT = '#75859a','#8899aa'                       # legible on white and on black
BLUE,ORANGE,GREEN,RED = '#3b82c4','#d9822b','#3d9a5f','#c8504b'
STYLE = ('text{font-family:Helvetica,Arial,sans-serif;font-size:15px;fill:%s}'
         '.small{font-size:12.5px}.mid{text-anchor:middle}.end{text-anchor:end}'
         '.on{fill:#ffffff;font-weight:bold}.it{font-style:italic}' % INK)

def num(x): return f'{x:.1f}'.rstrip('0').rstrip('.')

class Drawing:
    "Shapes that are written as one SVG file."
    def __init__(self, name, title, width, height):
        self.name,self.title = name, title
        self.width,self.height,self.parts = width, height, []

    def text(self, x, y, s, cls='mid', colour=None):
        fill = f' style="fill:{colour}"' if colour else ''
        self.parts.append(f'<text x="{num(x)}" y="{num(y)}" class="{cls}"{fill}>{s}</text>')

    def box(self, x, y, w, h, s='', colour=BLUE, filled=True, cls=''):
        "A box with a text in its middle."
        look = f'fill="{colour}"' if filled else f'fill="none" stroke="{colour}" stroke-width="2"'
        self.parts.append(f'<rect x="{num(x)}" y="{num(y)}" width="{num(w)}" height="{num(h)}" rx="5" {look}/>')
        if s: self.text(x+w/2, y+h/2+5, s, f'mid {"on" if filled else ""} {cls}'.strip(), None if filled else colour)

    def line(self, *points, colour=FAINT, arrow=True, width=2, dash=''):
        "A path through the points, `x, y, x, y, …`."
        at = ' '.join(f'{num(x)},{num(y)}' for x,y in zip(points[::2], points[1::2]))
        end = ' marker-end="url(#arrow)"' if arrow else ''
        dash = f' stroke-dasharray="{dash}"' if dash else ''
        self.parts.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{num(width)}"{dash}{end}/>')

    def plus(self, x, y, s='+'):
        self.parts.append(f'<circle cx="{num(x)}" cy="{num(y)}" r="12" fill="none" stroke="{INK}" stroke-width="2"/>')
        self.text(x, y+6, s)

    def cells(self, x, y, values, colour=BLUE, size=16, across=False):
        "A vector: a square for each number, the stronger the larger it is."
        for i,v in enumerate(values):
            cx,cy = (x+i*size, y) if across else (x, y+i*size)
            self.parts.append(f'<rect x="{num(cx)}" y="{num(cy)}" width="{size}" height="{size}" fill="{colour}" '
                              f'fill-opacity="{num(v)}" stroke="{FAINT}"/>')

    def grid(self, x, y, rows, colour=BLUE, size=22):
        "A matrix: a square for each number."
        for i,row in enumerate(rows): self.cells(x, y+i*size, row, colour, size, across=True)

    def svg(self):
        arrow = (f'<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
                 f'<path d="M0 0L10 5L0 10z" fill="{FAINT}"/></marker></defs>')
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                f'height="{self.height}" role="img" aria-label="{self.title}">')
        return '\n'.join([head, f'<title>{self.title}</title>', f'<style>{STYLE}</style>', arrow, *self.parts, '</svg>\n'])

TOKENS = ['the','cat','sat','down']
VECTORS = [(.9,.2,.4), (.3,.8,.1), (.6,.5,.9), (.1,.4,.7)]
WEIGHTS = [.1, .6, .2, .1]

def weighted_mean():
    d = Drawing('weighted_mean', 'The weighted mean: every vector times its weight, summed', 640, 250)
    d.text(10, 30, 'the new vector of <tspan class="it">sat</tspan>:', '')
    for i,(token,vec,w) in enumerate(zip(TOKENS, VECTORS, WEIGHTS)):
        x = 60+100*i
        d.text(x, 230, token, 'mid it')
        d.cells(x-8, 160, vec)
        d.line(x, 155, x, 128)
        d.box(x-24, 96, 48, 28, f'{w:.1f}', ORANGE)
        d.line(x, 92, x, 66, 420, 66, arrow=False)
    d.text(470, 115, 'weights', '', ORANGE)
    d.text(470, 130, 'sum to 1', 'small', ORANGE)
    d.text(470, 190, 'vectors x', '', BLUE)
    d.line(420, 66, 478, 66)
    d.plus(492, 66)
    d.line(506, 66, 548, 66)
    mean = [sum(w*v[i] for w,v in zip(WEIGHTS, VECTORS)) for i in range(3)]
    d.cells(556, 42, mean, GREEN)
    d.text(564, 112, 'y', 'mid it', GREEN)
    return d

def query_key_value():
    d = Drawing('query_key_value', 'A query meets each key; the softmax of the scores weighs the values', 700, 330)
    d.text(70, 313, 'sat', 'mid it')
    d.cells(62, 250, VECTORS[2])
    d.line(70, 246, 70, 214)
    d.box(30, 184, 80, 28, 'query', RED)
    for i,(token,vec) in enumerate(zip(TOKENS, VECTORS)):
        x = 210+110*i
        d.text(x, 313, token, 'mid it')
        d.cells(x-8, 250, vec)
        d.line(x-3, 246, x-25, 214)
        d.line(x+3, 246, x+25, 214)
        d.box(x-52, 184, 48, 28, 'key', BLUE)
        d.box(x+3, 184, 50, 28, 'value', GREEN, cls='small')
        d.line(x-28, 180, x-28, 142)
        d.plus(x-28, 128, '·')
        d.line(x-28, 114, x-28, 90)
        d.box(x-52, 60, 48, 28, f'{WEIGHTS[i]:.1f}', ORANGE)
        d.line(x-28, 56, x-28, 40, x+28, 40, x+28, 180, arrow=False, dash='4 4')
        d.line(x+28, 40, x+28, 24, 606, 24, arrow=False)
    d.line(112, 198, 132, 198, 132, 128, 168, 128)
    for i in range(3): d.line(196+110*i, 128, 278+110*i, 128)
    d.text(60, 120, 'dot products,', 'small mid')
    d.text(60, 136, 'divided by √k', 'small mid')
    d.text(60, 78, 'softmax', 'small mid', ORANGE)
    d.line(606, 24, 626, 24)
    d.plus(640, 24)
    d.line(640, 38, 640, 66)
    d.cells(632, 72, (.4,.6,.3), GREEN)
    d.text(640, 140, 'sum of weight', 'small mid')
    d.text(640, 156, '× value', 'small mid')
    return d

def heads():
    d = Drawing('heads', 'Heads: queries, keys and values are cut, each slice attends, the results are joined', 760, 300)
    steps = [('x', '(b, t, d)'), ('q, k, v', '(b, t, d)'), ('cut', '(b, h, t, d/h)'), ('attend', '(b, h, t, d/h)'),
             ('join', '(b, t, d)'), ('map', '(b, t, d)')]
    for i,(name,shape) in enumerate(steps):
        x = 65+124*i
        d.text(x, 265, name)
        d.text(x, 285, shape, 'small mid')
    colours = (RED, ORANGE, GREEN)
    d.box(35, 60, 60, 150, '', BLUE)
    d.box(159, 60, 60, 150, '', BLUE)
    for i,c in enumerate(colours):
        y = 30+72*i
        d.box(283, y, 60, 50, f'head {i}', c, cls='small')
        d.line(223, 135, 279, y+25)
        d.line(346, y+25, 400, y+25)
        d.grid(409, y+1, [(.9,.3,.2), (.2,.8,.3), (.4,.2,.9)], c, 16)
        d.line(466, y+25, 526, 85+50*i)
        d.box(531, 60+50*i, 60, 50, '', c)
    d.line(98, 135, 154, 135)
    d.line(594, 135, 650, 135)
    d.box(655, 60, 60, 150, '', BLUE)
    return d

def one_block(d, x, name, pre):
    "A block from bottom to top: two parts, each with its sum and its norm."
    d.text(x, 30, name)
    d.text(x, 490, 'x', 'mid it')
    for bottom,part,colour in ((470,'attention',BLUE), (262,'feed-forward',GREEN)):
        high = 152 if pre else 108                        # of the sum, above the bottom
        boxes = [(30,'norm',ORANGE), (86,part,colour)] if pre else [(42,part,colour), (138,'norm',ORANGE)]
        ends = (30, 86, 140, 208) if pre else (42, 96, 138, 208)
        starts = (0, 66, 122, 164) if pre else (0, 78, 120, 174)
        for a,b in zip(starts, ends): d.line(x, bottom-a, x, bottom-b, arrow=b != 208)
        for up,s,c in boxes: d.box(x-65, bottom-up-36, 130, 36, s, c)
        d.line(x, bottom-14, x+95, bottom-14, x+95, bottom-high, x+14, bottom-high)
        d.plus(x, bottom-high)
    d.line(x, 62, x, 42)

def block():
    d = Drawing('block', 'A block with norms after the sums, and one with norms before the parts', 620, 500)
    one_block(d, 150, 'post-norm', False)
    one_block(d, 430, 'pre-norm', True)
    return d

def triangle(n): return [[.85 if j <= i else 0 for j in range(n)] for i in range(n)]
def full(n, m): return [[.85]*m for _ in range(n)]

def stack_of(d, x, top, parts):
    "Boxes on top of each other, with arrows up."
    y = top
    for s,c in parts:
        d.box(x-85, y, 170, 38, s, c)
        d.line(x, y+58, x, y+40)
        y += 60
    return y

def encoder_decoder():
    d = Drawing('encoder_decoder', 'Encoder and decoder, and who may see whom', 760, 400)
    d.text(160, 28, 'encoder')
    d.text(520, 28, 'decoder')
    end = stack_of(d, 160, 130, [('feed-forward',GREEN), ('self-attention',BLUE)])
    d.text(160, end+18, 'source: 4 tokens', 'mid it')
    end = stack_of(d, 520, 70, [('feed-forward',GREEN), ('cross-attention',RED), ('self-attention',BLUE)])
    d.text(520, end+18, 'target so far: 3 tokens', 'mid it')
    d.line(520, 68, 520, 44)
    d.line(160, 128, 160, 100, 300, 100, 300, 149, 431, 149)
    d.text(345, 92, 'keys and values', 'small mid')
    d.grid(30, 290, full(4, 4), BLUE, 20)
    d.text(125, 325, 'every token sees', 'small')
    d.text(125, 341, 'its whole text', 'small')
    d.grid(330, 300, triangle(3), BLUE, 20)
    d.text(405, 325, 'a token sees', 'small')
    d.text(405, 341, 'its own past', 'small')
    d.grid(540, 300, full(3, 4), RED, 20)
    d.text(635, 325, 'and all of', 'small')
    d.text(635, 341, 'the source', 'small')
    for x,y,what in ((70,388,'self-attention'), (360,378,'self-attention'), (580,378,'cross-attention')): d.text(x, y, what, 'small mid')
    return d

def cache():
    d = Drawing('cache', 'Writing without a cache and with one', 720, 300)
    for x,name in ((40,'without a cache'), (400,'with a cache')): d.text(x, 30, name, '')
    for row in range(3):
        n,y = row+2, 60+70*row
        for x0,cached in ((40,False), (400,True)):
            d.text(x0, y+22, f'token {n+1}', 'small')
            for i in range(n):
                old = cached and i < n-1
                d.box(x0+66+48*i, y, 42, 34, 'k, v', FAINT if old else ORANGE, filled=not old, cls='small')
    d.box(40, 270, 18, 18, '', ORANGE)
    d.text(66, 284, 'computed now', 'small')
    d.box(200, 270, 18, 18, '', FAINT, filled=False)
    d.text(226, 284, 'kept from the step before', 'small')
    return d

ALL = weighted_mean, query_key_value, heads, block, encoder_decoder, cache

def main():
    for f in ALL:
        d = f()
        (Path(__file__).parent/f'{d.name}.svg').write_text(d.svg(), encoding='utf-8')

if __name__ == '__main__': main()
