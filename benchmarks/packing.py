"""Would whole batches as one row of tokens, without padding, be faster for classification than batches sorted by length?

Three figures. The part of a sorted batch that is padding: what packing could save at most. Then what torch has for rows of documents on this device, forward and backward: nested tensors beside
padding and a mask, on reviews of one sorted batch, and flex attention, which may refuse. IMDB's reviews come from where fastai keeps its data."""
from fastai.text.all import *
from fastai_txf.all import *
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from common import *
from imdb import draw, make_dls, read_tokens

HEADS,D_HEAD,BS = 4,32,32
NAMES = dict(padded='padding and a mask', nested='nested tensors', flex='flex attention')

def lengths(n, shuffled=False):
    "Lengths of the reviews of each batch of an epoch over `n` reviews, sorted as fastai's loader does it, or not."
    items = read_tokens('train')
    items = [items[i] for i in draw(items, n)]
    if shuffled: return torch.tensor([len(ts) for ts,_ in random.Random(0).sample(items, n)]).split(BS)
    set_seed(0)
    dls = make_dls(items, items[:2], dict(min_freq=3, max_vocab=10_000, bs=BS))
    return [(x != pad_index(dls)).sum(1).as_subclass(Tensor) for x,_ in dls.train]

def padding(batches): return 1 - sum(int(b.sum()) for b in batches)/sum(len(b)*int(b.max()) for b in batches)

def qkv(*shape): return [torch.randn(*shape, HEADS, D_HEAD, device=DEVICE, requires_grad=True) for _ in range(3)]

def padded(lens):
    "Attention over a padded batch."
    q,k,v = (t.transpose(1, 2) for t in qkv(len(lens), int(lens.max())))
    mask = (torch.arange(int(lens.max())) < lens[:,None])[:,None,None].to(DEVICE)
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()

def nested(lens):
    "The same over a nested tensor of texts."
    def texts(t): return torch.nested.as_nested_tensor([*t.split(lens.tolist())], layout=torch.jagged).transpose(1, 2)
    q,k,v = map(texts, qkv(int(lens.sum())))
    F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values().sum().backward()

def flex(lens):
    "The same over one row of tokens with the boundaries of the texts."
    doc = torch.repeat_interleave(torch.arange(len(lens)), lens).to(DEVICE)
    n = len(doc)
    mask = create_block_mask(lambda b, h, i, j: doc[i] == doc[j], None, None, n, n, device=DEVICE)
    q,k,v = (t.transpose(0, 1)[None] for t in qkv(n))
    torch.compile(flex_attention)(q, k, v, block_mask=mask).sum().backward()

RUNS = dict(padded=padded, nested=nested, flex=flex)

def race(lens, args):
    "A row for each way, or why there is none."
    refused = {}
    for k in RUNS:
        try: RUNS[k](lens)
        except (NotImplementedError, RuntimeError) as e: refused[k] = str(e).splitlines()[0].split('. ')[0]
    secs = in_turns({k:partial(f, lens) for k,f in RUNS.items() if k not in refused}, args.rounds, CLOCKS[args.clock])
    for k in RUNS:
        if k in refused: yield dict(candidate=k, refused=refused[k])
        else: yield dict(candidate=k, ms=1000*statistics.median(secs[k]), ratio=ratio(secs[k], secs['padded']))

def render(rows):
    "The results as markdown."
    parts,ways = ([r for r in rows if k in r] for k in ('padding','candidate'))
    cols = {'attention':lambda r: NAMES[r['candidate']], 'ms, forward and backward':'ms', 'times padding':'ratio', 'refused':'refused'}
    return ('# Packing without padding\n\nWritten by `python benchmarks/packing.py --threads 1 --clock processor`. A sorted batch is one of fastai\'s loader over as many of IMDB\'s reviews as it sorts at a time. '
            f'Attention: {BS} reviews of one sorted batch, {HEADS} heads of width {D_HEAD}.\n\n'
            + 'Not measured on a GPU.\n\n' + table(parts, {'batches':'batches', 'padding, per cent':lambda r: f"{100*r['padding']:.1f}", 'packing saves at most, times':lambda r: f"{1/(1-r['padding']):.3f}"})
            + '\n' + table(ways, cols) + '\n' + ran_with(rows, env=None))

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--n', type=int, default=50*BS, help='reviews: as many as fastai sorts at a time; nothing is recorded for another number')
    p.add_argument('--rounds', type=int, default=9, help='rounds of the race; nothing is recorded for another number')
    p.add_argument('--clock', choices=CLOCKS, default='wall', help='processor time is fairer where other programs run')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    batches = lengths(args.n)
    rows = [dict(batches=k, padding=padding(b)) for k,b in {'sorted':batches, 'not sorted':lengths(args.n, True)}.items()]
    middle = sorted(batches, key=lambda b: int(b.max()))[len(batches)//2]
    rows = [{**r, 'n':args.n, 'clock':args.clock, **about(args.threads)} for r in [*rows, *race(middle, args)]]
    print(text := render(rows))
    if not unusual(args, p, 'n', 'rounds'): record('packing', rows, text)

if __name__ == '__main__': main()
