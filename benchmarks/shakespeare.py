"""Characters of tinyshakespeare at nanoGPT's CPU setting: 4 layers, 4 heads, width 128, 64 characters, batches of 12, 2,000 steps, no dropout.

`txf` is `transformer_lm_learner` with sinusoidal positions, `plain` a model of the same size in nanoGPT's arrangement, in a loop without a learner. Both train on random windows of the first 90 % of
the text; the loss is that of the last 10 %, in disjoint windows of 64. The candidates take turns in one process, so that their times can be compared."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *

BS,SEQ_LEN,WIDTH,HEADS,LAYERS = 12,64,128,4,4
NAMES = dict(txf='`transformer_lm_learner`, sinusoidal positions', plain="the same size, arranged as nanoGPT's, in a plain loop")

# Data

def make_dls(): return LMDataLoaders.from_texts(*[[t] for t in read_shakespeare()], tok_tfm=CharTokenizer(), starts=False, bs=BS, seq_len=SEQ_LEN, windows='random')

# The learner

def txf(dls, steps):
    "A trained model, and the seconds of its training."
    learn = transformer_lm_learner(dls, 'default', d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_len=SEQ_LEN, positions='sinusoidal', p=0., emb_p=0., bias=False, opt_func=adamw)
    start = time.perf_counter()
    fit_steps(learn, steps, 4e-3, wd=0.1)
    return learn.model.eval(), time.perf_counter()-start

# The plain loop

def plain(dls, steps):
    "As `txf`."
    ids,model = torch.from_numpy(dls.train.flat.ids.astype(np.int64)),PlainModel(len(dls.vocab), WIDTH, HEADS, LAYERS, SEQ_LEN)
    groups = [dict(params=[p for p in model.parameters() if (p.ndim > 1) == o], weight_decay=0.1*o) for o in (True,False)]
    opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9,0.99), fused=True)
    start = time.perf_counter()
    for i in range(steps):
        lr = 1e-3*i/100 if i < 100 else 1e-4 + 0.45e-3*(1+math.cos(math.pi*(i-100)/(steps-100)))
        for g in opt.param_groups: g['lr'] = lr
        at = torch.randint(len(ids)-SEQ_LEN, (BS,1)) + torch.arange(SEQ_LEN+1)
        x,y = ids[at[:,:-1]],ids[at[:,1:]]
        F.cross_entropy(model(x).flatten(0,1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        opt.step(); opt.zero_grad()
    return model.eval(), time.perf_counter()-start

# Results

COLS = {'model':lambda r: NAMES[r['candidate']], 'seed':'seed', 'valid loss':lambda r: f"{r['loss']:.3f}", 'steps':'steps', 'seconds':'seconds', 'ms a step':lambda r: f"{1000*r['seconds']/r['steps']:.1f}", 'parameters':'params'}

def render(rows):
    "The results as markdown."
    times = {k:[r['seconds'] for r in rows if r['candidate'] == k] for k in NAMES}
    return f'# Characters of tinyshakespeare\n\nWritten by `python benchmarks/shakespeare.py`. {LAYERS} layers, {HEADS} heads, width {WIDTH}, windows of {SEQ_LEN} characters, batches of {BS}. ' \
           f'The loss is over the whole last tenth of the text.\n\n{table(rows, COLS)}\nThe learner takes {ratio(*times.values()):.2f} times as long as the plain loop, the median of {len(times["txf"])} rounds in which the two take turns.\n\n' \
           f"{ran_with(rows, env=None)}\nPublished for nanoGPT at this setting: a validation loss of 1.88.\n"

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1,2], help='a round for each; with others nothing is recorded')
    p.add_argument('--steps', type=int, default=2000, help='of training; with another number nothing is recorded')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    dls,rows = make_dls(), []
    valid = torch.from_numpy(dls.valid.flat.ids.astype(np.int64))
    for seed,name in itertools.product(args.seeds, NAMES):
        set_seed(seed)
        model,seconds = globals()[name](dls, args.steps)
        rows.append(dict(candidate=name, seed=seed, steps=args.steps, loss=token_losses(model, valid, SEQ_LEN).mean().item(), seconds=seconds, params=n_params(model), **about(args.threads)))
        print(json.dumps(rows[-1]), flush=True)
    print(text := render(rows))
    if not unusual(args, p, 'steps', 'seeds'): record('shakespeare', rows, text)

if __name__ == '__main__': main()
