"""Time to quality: characters of tinyshakespeare at nanoGPT's CPU setting (4 layers, 4 heads, width 128, 64 characters, batches of 12, no dropout).

`plain` is nanoGPT's arrangement and recipe in a plain loop, 2,000 steps of fused AdamW (see `shakespeare.py`). The others are `transformer_lm_learner` with the preset `modern` and `opt_func=muon`, trained by one call of
`fit_wsd`, whose rate falls from the end of the warm-up on, in bfloat16 where the processor has units for it (`amx_bf16`, or `avx512_bf16` alone): `quarter` for so many steps as take less than a quarter of the time of `plain`, `whole` for so many as take all of it. The candidates take turns, a round for each seed; a share is of the time of `plain`
in the same round. The loss is over the whole last tenth of the text; validation is not part of the time. The results of other processors are kept."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *
from shakespeare import BS,HEADS,LAYERS,plain,SEQ_LEN,WIDTH

NAMES = dict(plain="nanoGPT's arrangement and recipe, in a plain loop", quarter='`transformer_lm_learner`, `modern`, `muon`', whole='the same, longer')
HALF = '_bf16' in features()
STEPS = dict(plain=2000, quarter=350, whole=1600 if 'amx_bf16' in features() else 2450) if HALF else dict(plain=2000, quarter=340, whole=1400)
PUBLISHED = 1.88 # nanoGPT's own figure for this setting

def make_dls(steps):
    "Loaders whose epoch is so many random windows."
    return LMDataLoaders.from_texts(*[[t] for t in read_shakespeare()], tok_tfm=CharTokenizer(), starts=False, bs=BS, seq_len=SEQ_LEN, windows='random', epoch_len=steps)

class Clock(Callback):
    "The time of training, without validation."
    order,needs_logits = 90,False
    def __init__(self, clock): self.clock = clock
    def before_train(self): self.start = self.clock()
    def after_train(self): self.seconds = self.clock() - self.start

def txf(dls, clock):
    "A trained model, and the seconds of its training."
    learn = transformer_lm_learner(dls, 'modern', d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_len=SEQ_LEN, p=0., emb_p=0., opt_func=muon, cbs=(timer := Clock(clock)))
    if HALF: learn.to_bf16()
    with learn.no_bar(), learn.no_logging(): learn.fit_wsd(1, 1e-2, warmup=0.05, decay=0.95, wd=0.1)
    return learn.model.eval(), timer.seconds

def run(name, seed, clock):
    "A row."
    dls = make_dls(STEPS[name])
    valid = torch.from_numpy(dls.valid.flat.ids.astype(np.int64))
    set_seed(seed)
    if name == 'plain':
        model = []
        secs = seconds(lambda: model.append(plain(dls, STEPS[name])[0]), clock=clock)
        model = model[0]
    else: model,secs = txf(dls, clock)
    return dict(candidate=name, seed=seed, steps=STEPS[name], half=HALF and name != 'plain', loss=token_losses(model, valid, SEQ_LEN).mean().item(), seconds=secs, params=n_params(model))

def share(row, rows):
    "The time of `row` as a part of that of `plain` in its round."
    return row['seconds']/next(r['seconds'] for r in rows if r['candidate'] == 'plain' and r['seed'] == row['seed'])

def tables(rows):
    "The results of one processor as markdown."
    cols = {'model':lambda r: NAMES[r['candidate']] + ', `to_bf16`'*r.get('half', False), 'seed':'seed', 'valid loss':lambda r: f"{r['loss']:.3f}", 'steps':'steps', 'ms a step':lambda r: f"{1000*r['seconds']/r['steps']:.1f}",
            'seconds':'seconds', "part of `plain`'s time":lambda r: f'{100*share(r, rows):.0f} %', 'parameters':'params'}
    lines = []
    for k in ('quarter','whole'):
        mine = [r for r in rows if r['candidate'] == k]
        if mine: lines.append(f"- {mine[0]['steps']:,} steps take {100*statistics.median(share(r, rows) for r in mine):.0f} % of the time of `plain`, and reach {statistics.median(r['loss'] for r in mine):.3f} (medians of {len(mine)}).\n")
    return f"## {rows[0]['machine']}\n\nThe clock is {rows[0]['clock']}.\n\n{table(rows, cols)}\n{''.join(lines)}\n{ran_with(rows, env=None)}"

def render(rows):
    "The results as markdown, a part for each processor."
    return f'# Speedrun\n\nWritten by `python benchmarks/speedrun.py`. {LAYERS} layers, {HEADS} heads, width {WIDTH}, windows of {SEQ_LEN} characters, batches of {BS}. ' \
           f'Published for nanoGPT at this setting: a validation loss of {PUBLISHED} after 2,000 steps.\n\n' + '\n'.join(map(tables, by_machine(rows)))

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1,2], help='a round for each; with others nothing is recorded')
    p.add_argument('--only', nargs='+', default=list(NAMES), choices=list(NAMES), help='candidates; nothing is recorded for a part of them')
    p.add_argument('--clock', default='wall', choices=list(CLOCKS), help='processor time is fairer where other programs run')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for seed,name in itertools.product(args.seeds, args.only):
        rows.append(dict(**run(name, seed, CLOCKS[args.clock]), clock=args.clock, **about(args.threads)))
        print(json.dumps(rows[-1]), flush=True)
    if 'plain' in args.only: print(render(rows))
    if not unusual(args, p, 'seeds', 'only'): record_machine('speedrun', rows, render)

if __name__ == '__main__': main()
