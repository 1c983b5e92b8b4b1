"One picture of what `make bench` measured, from the rows under results/: results/bench.png."
from common import *
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt

OURS,PEER = 'tab:blue','tab:gray'
LABELS = dict(ours='ours', rotary='ours, rotary', nano='nanoGPT', hf='Hugging Face', torch='torch.nn', x='x-transformers', workshop='workshop', learner='learner', learner_same='learner, learned', learner_plain='learner, sizes alone', learner_modern='learner, modern', compiled='ours, compiled', bf16='ours, bf16',
              full='ours, all logits', chunked='ours, ChunkedLoss', twice='ours, checkpoint', both='ours, both', fastai='fastai', spacy='ours, spaCy', bpe_trained='ours, byte pairs', chars='ours, characters')

def rows(name):
    "The rows of a script; of a training step, which is measured on several processors, those of the last."
    rs = read_rows(HERE/'results'/f'{name}.jsonl')
    return [r for r in rs if r['machine'] == rs[-1]['machine']] if name == 'train' else rs
def label(k): return f"{LABELS[k[:-9]]}, compiled" if k.endswith('_compiled') else LABELS[k]

def bars(ax, values, title, unit, ours):
    "Horizontal bars, the longest on top, those of `ours` in colour, each with its number."
    ks = sorted(values, key=values.get)
    ax.barh([label(k) for k in ks], [values[k] for k in ks], color=[OURS if ours(k) else PEER for k in ks])
    for i,k in enumerate(ks): ax.text(values[k], i, f' {values[k]:,.0f}' if values[k] >= 10 else f' {values[k]:.2f}', va='center', fontsize=8)
    ax.set(title=title, xlabel=unit, xlim=(0, 1.2*max(values.values())))

PEERS = 'nano','hf','torch','x','workshop','fastai'
def mine(k): return k.removesuffix('_compiled') not in PEERS

def train(ax, rs): bars(ax, {r['candidate']:r['tokens_per_s'] for r in rs if 'bf16' not in r['candidate']}, 'a training step, 8 × 256 tokens, fp32', 'tokens/s', mine)
def epoch(ax, rs): bars(ax, {r['candidate']:r['tokens']/r['seconds'] for r in rs}, 'IMDB classification, fp32', 'real tokens/s', mine)
def generate(ax, rs): bars(ax, {r['candidate']:r['tokens_per_s'] for r in rs if r.get('bs') == 1 and r['machine'] == rs[0]['machine']}, 'generation, one text', 'new tokens/s', mine)
def scale(ax, rs): bars(ax, {r['candidate']:r['mb'] for r in rs if r['candidate'] in ('full','chunked','twice','both')}, 'a step with a vocabulary of 60,000', 'MB at the peak', lambda k: k != 'full')

def memory(ax, rs):
    for r in rs:
        if 'mb' in r and 'bf16' not in r['candidate']: ax.plot([int(n) for n in r['mb']], list(r['mb'].values()), 'o--' if r['candidate'].startswith('learner') else 'o-', label=label(r['candidate']), lw=2.5 if mine(r['candidate']) else 1)
    ax.set(title='memory of a training step, one text', xlabel='tokens', ylabel='MB above the imports', xscale='log', yscale='log')
    for axis,ticks in ((ax.xaxis,[512,1024,2048,4096]), (ax.yaxis,[200,500,1000,2000,5000,10000])): axis.set_ticks(ticks, [f'{o:,}' for o in ticks])
    ax.set_ylim(top=40_000); ax.minorticks_off(); ax.legend(fontsize=7, ncols=2, loc='upper left')

def tokenizing(ax, rs):
    rate = {k:[r['texts_per_s'] for r in rs if r['candidate'] == k and not r['n'] and r['asked'] == 25_000] for k in ('fastai','spacy','bpe_trained','chars')}
    bars(ax, {k:statistics.median(v) for k,v in rate.items() if v}, "IMDB's reviews to token ids", 'texts/s', mine)

PANELS = [('train',train), ('train',memory), ('epoch',epoch), ('generate',generate), ('scale',scale), ('tokenizing',tokenizing)]

def main():
    there = [(draw, rs) for name,draw in PANELS if (rs := rows(name))]
    if not there: raise SystemExit(f'there are no rows under {HERE/"results"} yet: run the benchmarks first')
    heights = [4.8, *[3.2]*((len(there)-1)//2)] # inches; the first panels have the most labels
    fig,axs = plt.subplots(len(heights), 2, figsize=(11, sum(heights)), height_ratios=heights, squeeze=False)
    for ax in axs.flat[len(there):]: ax.remove()
    for ax,(draw,rs) in zip(axs.flat, there): draw(ax, rs)
    seen = dict.fromkeys(r['machine'] + '; ' + r['versions'].split(', fastai')[0] for _,rs in there for r in rs)
    fig.suptitle('Beside the peers: 4 layers, d_model 256, 8 heads, vocabulary 10,000')
    fig.text(0.5, 0.005, '\n'.join(seen), ha='center', fontsize=7)
    fig.tight_layout(rect=(0, 0.012*len(seen)+0.01, 1, 1))
    fig.savefig(HERE/'results'/'bench.png', dpi=110)

if __name__ == '__main__': main()
