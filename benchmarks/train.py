"""The time and memory of a training step: this library beside Hugging Face GPT-2, x-transformers, `nn.TransformerEncoder`, nanoGPT's arrangement and the workshop's model, each as it is and compiled.

One shape for all (see `peers.py`), no dropout, batches of 8 × 256 tokens, fused AdamW, fp32. Times: the candidates take turns in one process, medians over the rounds, ratios of the rounds.
Compiled are our blocks, by `compile_for_training` for all lengths, and the peers' whole models, by `torch.compile` for the one length that they see.
Memory: a fresh process for each candidate and length, the largest resident set of four steps above that after the imports (Linux only)."""
from peers import *

NAMES = {'ours':'`TransformerLM`, learned positions', 'rotary':'`TransformerLM`, rotary positions', 'chunked':'`TransformerLM`, learned positions, `chunked_cross_entropy`', 'nano':"nanoGPT's arrangement", 'hf':'Hugging Face GPT-2', 'torch':'`nn.TransformerEncoder`', 'x':'x-transformers', 'workshop':"the workshop's model"}
MAKE = dict(ours=lambda n: ours(n, None, positions='learned', bias=False, p=0., emb_p=0.), rotary=lambda n: ours(n, None, positions='rotary', bias=False, p=0., emb_p=0.), nano=nano, chunked=lambda n: MAKE['ours'](n),
            hf=lambda n: hugging_face(n, embd_pdrop=0., attn_pdrop=0., resid_pdrop=0.), torch=TorchLM, x=x_transformers, workshop=workshop)
LENGTHS = 512,1024,2048,4096 # tokens in one text, for memory

COMPILED = {f'{k}_compiled':k for k in ('ours','rotary','nano','hf','torch','x')}
NAMES |= {k:f'{NAMES[o]}, compiled' for k,o in COMPILED.items()}

def make(name, sl):
    "A candidate's model."
    torch.manual_seed(0)
    if name in MAKE: return MAKE[name](sl)
    model = MAKE[COMPILED[name]](sl)
    return compile_for_training(model) if isinstance(model, TransformerLM) else torch.compile(model)

def stepper(name, bs, sl):
    "A training step of a candidate."
    model = make(name, sl).to(DEVICE)
    ids = torch.randint(2, VOCAB, (bs,sl+1), device=DEVICE)
    x,y = ids[:,:-1], ids[:,1:]
    def full_loss():
        out = model(x)
        return F.cross_entropy(getattr(out, 'logits', out).flatten(0, 1), y.flatten())
    def no_logits(): return chunked_cross_entropy(model.hidden(x), model.head.weight, y)
    return train_step(name, model, no_logits if name == 'chunked' else full_loss)

def race(args):
    "A row for each candidate."
    runs = {k:stepper(k, 8, 256) for k in args.only}
    first = {k:seconds(f) for k,f in runs.items()}
    print('first steps', first, flush=True)
    secs = in_turns(runs, args.rounds, CLOCKS[args.clock])
    times = lambda ts, base: ratio(ts, secs[base]) if base in secs else None
    for k,ts in secs.items():
        yield dict(candidate=k, seconds=statistics.median(ts), ratio=times(ts, 'ours'), ratio_compiled=times(ts, 'ours_compiled'), first=round(first[k], 1),
                   tokens_per_s=round(8*256/statistics.median(ts)), params=runs[k].params, rounds=args.rounds, clock=args.clock, **about(args.threads, 'transformers', 'x-transformers'))

def memory(name, sl, args):
    "Peak MB of a candidate's steps on one text of `sl` tokens, in a fresh process."
    return int(from_child('--child', name, sl, '--threads', args.threads))

def child(name, sl):
    "What `memory` runs."
    before,step = peak(),stepper(name, 1, int(sl))
    for _ in range(4): step()
    print(round(peak()-before))

def render(rows):
    "The results as markdown."
    cols = {'model':lambda r: NAMES[r['candidate']], 'seconds a step':lambda r: f"{r['seconds']:.3f}", 'tokens/s':'tokens_per_s', 'times `TransformerLM`':'ratio'}
    memory = {'parameters':'params', **{f'MB at {n:,}':lambda r, n=n: r['mb'][str(n)] for n in LENGTHS}}
    first = {'times `TransformerLM`, compiled':'ratio_compiled', 'seconds of the first step':'first'}
    plain,compiled = [r for r in rows if r['candidate'] in MAKE],[r for r in rows if r['candidate'] in COMPILED]
    return f'# A training step\n\nWritten by `python benchmarks/train.py`. 4 layers, d_model {WIDTH}, {HEADS} heads, vocabulary {VOCAB:,}, fp32, fused AdamW. Seconds ({rows[0]["clock"]}): 8 × 256 tokens, medians of {rows[0]["rounds"]} rounds in turns, plain and compiled. ' \
           f'MB: the peak above the imports, optimizer included, on one text of so many tokens.\n\n{table(plain, cols | memory)}\n' \
           f'Compiled: our blocks, for all lengths (`compile_for_training`); the peers whole, for this length (`torch.compile`).\n\n{table(compiled, cols | first)}\n{ran_with(rows, env=None)}'

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', nargs='+', choices=NAMES, default=list(NAMES), help='candidates; nothing is recorded for a part of them')
    p.add_argument('--rounds', type=int, default=9, help='rounds of the race')
    p.add_argument('--clock', choices=CLOCKS, default='wall', help='processor: seconds of the processor, for a CPU that others use, too, with --threads 1')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    p.add_argument('--child', nargs=2, help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.child: return child(*args.child)
    rows = list(race(args))
    for r in rows: print(r['candidate'], f"{r['seconds']:.3f} s", r['ratio'], r['ratio_compiled'], flush=True)
    for r in rows:
        if r['candidate'] in COMPILED: continue                             # the compiler itself would count
        r['mb'] = {str(n):memory(r['candidate'], n, args) for n in LENGTHS}
        print(r['candidate'], r['mb'], flush=True)
    print(text := render(rows))
    if len(rows) < len(NAMES): return
    record('train', rows, text)

if __name__ == '__main__': main()
