"""The README's picture, from two models trained here: which words decide, and where a date is read.

It takes two minutes of a core.

It writes `nbs/images/overview.png`, or the file that it is given."""
import argparse, random
from pathlib import Path
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
from fastai.text.all import *
from fastai_txf.all import *

OVERVIEW = Path(__file__).parents[1]/'nbs'/'images'/'overview.png'
TEXT = 'Drop the rows of the DataFrame that have missing values.'
DATE = '4 July 1976'
MONTHS = 'January February March April May June July August September October November December'.split()

def classifier(epochs=5):
    "The classifier of `nbs/index.ipynb`: which package a docstring is from."
    set_seed(0)
    df = docstrings_df(('numpy','torch','pandas','sklearn'), max_per_class=300, max_words=60)
    dls = TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid',
                                  bs=32, n_workers=0, num_workers=0)
    learn = transformer_classifier_learner(dls, metrics=accuracy)
    with learn.no_bar(): learn.fit_one_cycle(epochs, 3e-3)
    return learn

def dates(n=5000, epochs=14):
    "The encoder-decoder of `nbs/tutorials/dates.ipynb`: dates as people write them to ISO dates."
    rng = random.Random(0)
    forms = [lambda y,m,d: f'{d} {MONTHS[m-1]} {y}', lambda y,m,d: f'{MONTHS[m-1]} {d}, {y}',
             lambda y,m,d: f'{MONTHS[m-1][:3]} {d} {y}', lambda y,m,d: f'{d:02}/{m:02}/{y}']
    days = [(o.year,o.month,o.day) for o in rng.sample(list(pd.date_range('1950-01-01', '2049-12-31')), n)]
    df = pd.DataFrame(dict(written=[rng.choice(forms)(*o) for o in days], iso=[f'{y}-{m:02}-{d:02}' for y,m,d in days],
                           is_valid=[i >= 0.9*n for i in range(n)]))
    dls = Seq2SeqDataLoaders.from_df(df, src_col='written', tgt_col='iso', valid_col='is_valid',
                                     tok_tfm=CharTokenizer(), bs=64)
    set_seed(0)
    learn = transformer_seq2seq_learner(dls, d_model=64, n_layers=2, p=0., emb_p=0., metrics=TokenAccuracy())
    with learn.no_bar(): learn.fit_one_cycle(epochs, 5e-3)
    return learn

def draw_words(ax, learn, text, width=34):
    "The words of a text, each on the colour of its share in the decision."
    e = learn.explain(text)
    values = [v for (w,_,_),v in zip(e.spans, e.values) if w != 'xxbos']
    shown = [w for w,_,_ in e.spans if w != 'xxbos']
    top = max(map(abs, values))
    x,y = 0.02, 0.68
    rend = ax.figure.canvas.get_renderer()
    for word,v in zip(shown, values):
        colour = (0.13, 0.4, 0.67, 0.75*v/top) if v > 0 else (0.7, 0.09, 0.17, 0.75*-v/top)
        t = ax.text(x, y, word, fontsize=15, va='center', bbox=dict(boxstyle='round,pad=0.25', fc=colour, ec='none'))
        w = t.get_window_extent(rend).width/ax.get_window_extent(rend).width
        if x + w > 0.98:
            x,y = 0.02, y - 0.17
            t.set_position((x, y))
        x += w + 0.035
    best = sorted(zip(values, shown), reverse=True)[:3]
    ax.text(0.02, y - 0.22, 'the most: ' + ', '.join(f'{w} {v:+.1f}' for v,w in best), fontsize=11, color='0.35')
    ax.set(title=f'Which words decide: {e.target}, {1/(1+math.exp(-e.score)):.1%}', xlim=(0, 1), ylim=(0, 1))
    ax.axis('off')

def draw_looks(ax, learn, text):
    "Where the encoder-decoder looks while it writes."
    e = learn.encode(text, learn.predict(text))
    ax.imshow(e.weights.mean(0), cmap='Blues', vmin=0, aspect='auto')
    def shown(ts): return [{'xxbos':'start','xxeos':'end','▁':'space'}.get(t, t) for t in ts]
    ax.set_xticks(range(len(e.tokens)), shown(e.tokens), fontsize=9)
    ax.set_yticks(range(len(e.target)), shown(e.target), fontsize=10)
    ax.set(xlabel='read', ylabel='written', title='Where a date is read')
    ax.tick_params(length=0)

def main(file=OVERVIEW, clf={}, s2s={}):
    fig,(a,b) = plt.subplots(1, 2, figsize=(11, 3.6), width_ratios=[1.35,1], facecolor='white')
    draw_words(a, classifier(**clf), TEXT)
    draw_looks(b, dates(**s2s), DATE)
    fig.tight_layout()
    fig.savefig(file, dpi=110)

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('file', nargs='?', default=OVERVIEW, help='to write')
    main(p.parse_args().file)
