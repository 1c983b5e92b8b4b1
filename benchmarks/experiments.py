"""What tutorials claim, measured: wide and narrow heads, depth, positions beyond the trained length.

Small language models of the characters of tinyshakespeare, and for `heads` and `depth` classifiers of 4,000 IMDB reviews, too. Whatever is compared trains for the same steps
on the same batches at the same learning rates. A run that is in results/experiments.jsonl is not repeated; experiments share the runs that they have in common."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *
import imdb, shakespeare

BS,SEQ_LEN = shakespeare.BS,shakespeare.SEQ_LEN
BASE = dict(d_model=64, n_heads=4, n_layers=2, bias=False, p=0., emb_p=0.)
LENGTHS = [SEQ_LEN*2**i for i in range(4)]
STEPS = dict(characters=600, lengths=600, reviews=250)

CANDIDATES = dict(
    heads    ={'standard':{}, 'wide':dict(mode='wide'), 'narrow':dict(mode='narrow'),
               'standard, as large as wide':dict(d_ff=640), 'narrow, as large as standard':dict(mode='narrow', d_ff=328)},
    depth    ={str(n):{} if n == BASE['n_layers'] else dict(n_layers=n) for n in (1,2,4,6)},
    positions={'learned, 64 of them':dict(positions='learned', max_len=SEQ_LEN), 'learned, 512 of them':dict(positions='learned', max_len=LENGTHS[-1]),
               **{k:dict(positions=k) for k in ('sinusoidal','rotary','alibi','conv','none')}})
TASKS = dict(heads=['characters','reviews'], depth=['characters','reviews'], positions=['lengths'])

# Training

@functools.cache
def text(): return shakespeare.make_dls()

def valid_ids():
    "The last tenth, cut to a whole number of windows of every length."
    ids = torch.from_numpy(text().valid.flat.ids.astype(np.int64))
    return ids[:(len(ids)-1)//LENGTHS[-1]*LENGTHS[-1]+1]

def train_lm(steps, **kw):
    "A learner that has learned characters."
    learn = transformer_lm_learner(text(), 'default', opt_func=adamw, **{**BASE, **kw})
    fit_steps(learn, steps, 4e-3, wd=0.1)
    learn.model.eval()
    return learn

def characters(steps, **kw):
    "The loss of each character in windows as long as those of training."
    learn = train_lm(steps, **kw)
    return learn, dict(loss=token_losses(learn.model, valid_ids(), SEQ_LEN).mean().item())

def lengths(steps, **kw):
    "The loss in windows of every length that the model takes, by its place in the longest, and there with no more than `SEQ_LEN` characters in sight."
    learn,ids = train_lm(steps, **kw), valid_ids()
    reach = ifnone(learn.model.encoder.positions.max_len, math.inf)
    losses = {n:token_losses(learn.model, ids, n) for n in LENGTHS if n <= reach}
    places = losses[LENGTHS[-1]].mean(0).view(-1, SEQ_LEN//2).mean(1).tolist() if LENGTHS[-1] in losses else None
    in_sight = token_logprobs(learn.model, ids.unfold(0, LENGTHS[-1]+1, LENGTHS[-1]), max_len=SEQ_LEN)
    return learn, dict(loss={str(n):l.mean().item() for n,l in losses.items()}, places=places, in_sight=-in_sight.mean().item())

@functools.cache
def reviews_dls(n=4000):
    "`n` reviews to train on, and 2,500 of other films."
    train,valid,_ = imdb.parts(imdb.read_tokens, True, None)
    return imdb.make_dls([train[i] for i in imdb.draw(train, n)], valid, dict(min_freq=3, max_vocab=30_000, bs=32))

def reviews(steps, **kw):
    "Accuracy in per cent on the last `SEQ_LEN` tokens of each review."
    learn = transformer_classifier_learner(reviews_dls(), opt_func=adamw, **{**BASE, 'p':0.1, 'emb_p':0.1, 'max_len':SEQ_LEN, 'long':'tail', **kw})
    fit_steps(learn, steps, 2e-3, wd=0.1)
    with learn.no_bar(): preds,targs = learn.get_preds()
    return learn, dict(accuracy=100*accuracy(preds, targs).item())

def run(task, seed, steps, kw):
    "One training, and what comes of it."
    set_seed(seed)
    start = time.process_time()
    learn,res = globals()[task](steps, **kw)
    return dict(**res, params=n_params(learn.model), seconds=round(time.process_time()-start, 1))

# What a step costs

def stepper(kw, bs):
    "A function that trains a language model for one step on random characters, without a learner."
    model = TransformerLM(vocab_sz=65, **{**BASE, **kw})
    opt,(x,y) = torch.optim.Adam(model.parameters(), fused=True), torch.randint(2, 65, (2,bs,SEQ_LEN))
    def step():
        F.cross_entropy(model(x).flatten(0,1), y.flatten()).backward()
        opt.step(); opt.zero_grad()
    return step

def step_ms(experiment, rounds=15, n=5):
    "Milliseconds of the processor of a step of each candidate: medians of rounds in which they take turns."
    steps = {k:stepper(kw, BS) for k,kw in CANDIDATES[experiment].items()}
    times = in_turns({k:lambda f=f: [f() for _ in range(n)] for k,f in steps.items()}, rounds, time.process_time)
    return {k:1000*statistics.median(ts)/n for k,ts in times.items()}

def print_mb(experiment, name, bs=64):
    "Print the largest resident set in three steps on `bs` windows, above that after the imports: in a process of its own."
    before,step = peak(),stepper(CANDIDATES[experiment][name], bs)
    for _ in range(3): step()
    print(round(peak()-before))

def step_mb(experiment, name, threads): return int(from_child(experiment, '--threads', threads, '--memory', name))

def cost(experiment, threads):
    "Time of a step, and memory where the models differ in size."
    return dict(ms=step_ms(experiment), mb={k:step_mb(experiment, k, threads) for k in CANDIDATES[experiment] if experiment != 'positions'})

# Results

def find(rows, **asked): return [r for r in rows if all(r.get(k) == v for k,v in asked.items())]

def each(rows, key, digits=3):
    "The values of `key`, one for each seed."
    return ', '.join(f'{r[key]:.{digits}f}' for r in sorted(rows, key=lambda r: r['seed'])) or None

def by_length(n):
    return lambda r: ', '.join(f"{o['loss'][str(n)]:.3f}" for o in r['runs'] if str(n) in o['loss']) or None

COLS = dict(
    heads={'heads':'name', 'parameters':'params', 'valid loss, characters':lambda r: each(r['runs'], 'loss'), 'accuracy, reviews':lambda r: each(r['reviews'], 'accuracy', 1), 'ms a step':'ms', 'MB of a step':'mb'},
    positions={'positions':'name', 'parameters':'params', **{f'loss at {n}':by_length(n) for n in LENGTHS}, f'at {LENGTHS[-1]}, {SEQ_LEN} in sight':lambda r: each(r['runs'], 'in_sight'), 'ms a step':'ms'})
COLS['depth'] = {'blocks':'name', **{k:c for k,c in COLS['heads'].items() if k != 'heads'}}

ABOUT = dict(
    heads='Standard heads see the whole vector and work in a quarter of its width; wide ones work in all of it; narrow ones see and work in a quarter.',
    depth='Blocks of standard heads.',
    positions=f'Trained in windows of {SEQ_LEN} characters, scored in longer ones; – where the positions have come to an end. "In sight": the windows of {LENGTHS[-1]}, read by `token_logprobs` with `max_len={SEQ_LEN}`.')

def summary(rows, experiment):
    "A line of the experiment's table for each candidate."
    main,cost = TASKS[experiment][0], find(rows, task='cost', experiment=experiment)
    for name,kw in CANDIDATES[experiment].items():
        runs = find(rows, task=main, model=kw)
        if runs: yield dict(name=name, runs=runs, reviews=find(rows, task='reviews', model=kw), params=runs[0]['params'], **{k:cost[0][k].get(name) if cost else None for k in ('ms','mb')})

def render(rows):
    "The results as markdown."
    res = f'# What tutorials claim, measured\n\nWritten by `python benchmarks/experiments.py`. Width 64, 4 heads, 2 blocks and rotary positions unless said. Characters: {STEPS["characters"]} steps on batches of {BS} × {SEQ_LEN}; the loss is over the whole last tenth of the text. ' \
          f'Reviews: the last {SEQ_LEN} tokens of 4,000 IMDB reviews, {STEPS["reviews"]} steps on batches of 32; accuracy in per cent on 2,500 others. One figure for each seed. ' \
          f'A step: characters; its milliseconds those of the processor, medians of 15 rounds in turns; its memory that of 64 × {SEQ_LEN} characters in a process of its own.\n'
    for experiment in CANDIDATES:
        lines = list(summary(rows, experiment))
        if lines: res += f'\n## {experiment.capitalize()}\n\n`python benchmarks/experiments.py {experiment}`. {ABOUT[experiment]}\n\n{table(lines, COLS[experiment])}'
    return f'{res}\n{ran_with(rows, env=None)}'

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('experiments', nargs='+', choices=CANDIDATES, help='what to measure')
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1], help='a training for each')
    p.add_argument('--steps', type=int, help='of training, in place of the usual number; nothing is recorded then')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    p.add_argument('--memory', help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory: return print_mb(args.experiments[0], args.memory)
    file,rows = HERE/'results'/'experiments.jsonl', []
    if args.steps is None: rows = read_rows(file)
    def do(asked, f):
        if find(rows, **asked): return print('done before:', json.dumps(asked))
        rows.append({**asked, **f(), **about(args.threads)})
        print(json.dumps(rows[-1]), flush=True)
        if args.steps is None: add_row(file, rows[-1])
    for experiment in args.experiments:
        do(dict(task='cost', experiment=experiment), partial(cost, experiment, args.threads))
        for task,seed in itertools.product(TASKS[experiment], args.seeds):
            for kw in CANDIDATES[experiment].values():
                steps = ifnone(args.steps, STEPS[task])
                do(dict(task=task, seed=seed, steps=steps, model=kw), partial(run, task, seed, steps, kw))
    print(res := render(rows))
    if args.steps is None: file.with_suffix('.md').write_text(res)

if __name__ == '__main__': main()
