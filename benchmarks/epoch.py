"""A part of an epoch of IMDB classification: this library's classifier, plain and compiled, beside `nn.TransformerEncoder` fed fastai's batches as they come.

One size for all (see `peers.py`), the same tokens, at most `max_len` of a review, no dropout, fused AdamW, fp32. The batches are drawn evenly from those of an epoch and
kept as fastai's loader makes them; the candidates take turns batch by batch. Ours moves the padding behind the text before it crops; the peer crops what comes, and hides the padding from its attention."""
from peers import *
from imdb import TransformerClassifier, draw, make_dls, pad_index, read_tokens, set_seed

NAMES = {'torch':'`nn.TransformerEncoder`', 'ours':'`TransformerClassifier`', 'compiled':'`TransformerClassifier`, `compile=True`'}

class TorchClassifier(TorchLM):
    "`nn.TransformerEncoder` over the first columns of a batch, the mean of its real tokens to logits."
    def __init__(self, vocab_sz, max_len, pad_idx):
        super().__init__(max_len, vocab_sz)
        self.max_len,self.pad_idx,self.head = max_len,pad_idx,nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = x[:,:self.max_len]
        pad = x == self.pad_idx
        pad[:,0] &= ~pad.all(1)                                             # attention without a key gives NaN
        h = self.blocks(self.emb(x) + self.pos.weight[:x.shape[1]], src_key_padding_mask=pad)
        real = (~pad)[...,None]
        return self.head((h*real).sum(1)/real.sum(1))

def library(vocab_sz, max_len, pad_idx):
    return TransformerClassifier(vocab_sz=vocab_sz, pad_idx=pad_idx, d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_len=max_len, positions='learned', pool='mean', long='head', p=0., emb_p=0., head_p=0.)

MAKE = dict(torch=TorchClassifier, ours=library, compiled=lambda *args: compile_for_training(library(*args)))

def trainer(name, *args):
    "A training step of a candidate, a function of a batch."
    torch.manual_seed(0)
    model = MAKE[name](*args).train().to(DEVICE)
    return train_step(name, model, lambda x, y: F.cross_entropy(model(x), y))

def batches(args):
    "Every n-th batch of one epoch over as many reviews as fastai's loader sorts by length at a time, as plain tensors; the sizes that a model needs."
    items = read_tokens('train')
    items = [items[i] for i in draw(items, 50*args.bs)]
    set_seed(0)
    dls = make_dls(items, items[:2], dict(min_freq=3, max_vocab=VOCAB, bs=args.bs))
    made = [[t.as_subclass(torch.Tensor) for t in b] for b in dls.train]
    return made[::-(-len(made)//args.batches)], (len(dls.vocab[0]), args.max_len, pad_index(dls))

def race(args):
    "A row for each candidate."
    data,sizes = batches(args)
    steps = {k:trainer(k, *sizes) for k in args.only}
    first = {k:seconds(f, *data[0]) for k,f in steps.items()}
    print('first steps', first, flush=True)
    times = {k:[0.]*args.rounds for k in steps}
    for r in range(args.rounds):
        for b in data:
            for k,f in steps.items(): times[k][r] += seconds(f, *b, clock=CLOCKS[args.clock])
    lens = torch.cat([(x != sizes[-1]).sum(1) for x,_ in data])
    seen = dict.fromkeys(NAMES, int(lens.clamp(max=args.max_len).sum())) | dict(torch=sum(int((x[:,:args.max_len] != sizes[-1]).sum()) for x,_ in data))
    for k,ts in times.items():
        yield dict(candidate=k, seconds=statistics.median(ts), ratio=ratio(times['torch'], ts) if 'torch' in times else None, first=round(first[k], 1), tokens=seen[k],
                   params=steps[k].params, reviews=len(lens), bs=args.bs, max_len=args.max_len, rounds=args.rounds, clock=args.clock, **about(args.threads))

def render(rows):
    "The results as markdown."
    r = rows[0]
    cols = {'model':lambda r: NAMES[r['candidate']], f'seconds ({r["clock"]}) a pass':lambda r: f"{r['seconds']:.2f}", "times `nn.TransformerEncoder`'s rate of batches":'ratio', 'real tokens read':'tokens', 'seconds of the first step':'first', 'parameters':'params'}
    return f'# An epoch of IMDB classification\n\nWritten by `python benchmarks/epoch.py`. {LAYERS} layers, d_model {WIDTH}, {HEADS} heads, the first {r["max_len"]} tokens, fp32, fused AdamW. {r["reviews"]:,} reviews in batches of {r["bs"]}, ' \
           f'drawn evenly from an epoch; medians of {r["rounds"]} passes in which the candidates take turns batch by batch.\n\n{table(rows, cols)}\n{ran_with(rows, env=None)}'

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', nargs='+', choices=NAMES, default=list(NAMES), help='candidates; nothing is recorded for a part of them, or for other numbers than the usual')
    for name,default,doc in (('bs', 32, 'reviews in a batch'), ('max_len', 512, 'tokens of a review'), ('batches', 10, 'of an epoch'), ('rounds', 5, 'passes'), ('threads', torch.get_num_threads(), 'of torch')):
        p.add_argument(f'--{name}', type=int, default=default, help=doc)
    p.add_argument('--clock', choices=CLOCKS, default='wall', help='processor: seconds of the processor, for a CPU that others use, too, with --threads 1')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    rows = list(race(args))
    print(text := render(rows))
    if len(rows) < len(NAMES) or unusual(args, p, 'bs', 'max_len', 'batches', 'rounds'): return
    record('epoch', rows, text)

if __name__ == '__main__': main()
