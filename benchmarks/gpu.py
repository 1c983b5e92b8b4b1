"""One GPU: a training step at the size of GPT-2 small, writing with that model, and IMDB with a model that fits the card.

`step`: tokens per second and the peak of the card's memory for `transformer_lm_learner`, with and without its logits, beside nanoGPT's arrangement and Hugging Face GPT-2 in plain loops; bfloat16 by autocast, fused AdamW.
`write`: new tokens per second, beside Hugging Face's `generate`, weights in bfloat16.
`imdb`: a causal model reads the 75,000 reviews for training as a language model, by the clock, learns from the 25,000 labels, and is scored once on the test set.
Each puts its rows into results/gpu.jsonl. Needs CUDA and, but for `imdb`, `pip install -e '.[bench]'`."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *
from imdb import held_out, lm_dls, make_vocab_of, number, read_tokens
from unlabelled import SEP, share, split_off, targets

SHAPE = dict(d_model=768, n_heads=12, n_layers=12)
VOCAB,LENGTH,BS,STEPS = 50_304,1024,16,20
SAME = dict(positions='learned', bias=False, p=0., emb_p=0.)                # the shape of the peers

# A training step

def dls_of(n):
    "Batches of random tokens for `n` steps."
    vocab = [*defaults.text_spec_tok, *(f'w{i}' for i in range(VOCAB - len(defaults.text_spec_tok)))]
    ids = np.random.RandomState(0).randint(10, VOCAB, n*BS*LENGTH + 1)
    return LMDataLoaders.from_ids(ids, ids[:BS*LENGTH + 1], vocab, bs=BS, seq_len=LENGTH)

def library(compile=False, keep_logits=False, config='default'):
    learn = transformer_lm_learner(dls_of(STEPS), config, opt_func=adamw, max_len=LENGTH, compile=compile, **SHAPE, **SAME).to_bf16()
    learn.keep_logits = keep_logits
    def fit():
        with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-4, cbs=StopAfter(STEPS))
        assert math.isfinite(learn.recorder.losses[-1])
    return fit, n_params(learn.model)

def plain(make, compile=False):
    "The steps of a model in a plain loop."
    model = make().to(DEVICE)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compile else model
    ids = torch.randint(10, VOCAB, (STEPS,BS,LENGTH+1))
    def loop():
        for batch in ids:
            batch = batch.to(DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16): out = run(batch[:,:-1])
            loss = F.cross_entropy(getattr(out, 'logits', out).flatten(0, 1).float(), batch[:,1:].flatten())
            loss.backward(); opt.step(); opt.zero_grad()
            assert math.isfinite(loss.item())
    return loop, n_params(model)

def nano(): return PlainModel(VOCAB, SHAPE['d_model'], SHAPE['n_heads'], SHAPE['n_layers'], LENGTH)

def hugging_face():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, embd_pdrop=0., attn_pdrop=0., resid_pdrop=0., bos_token_id=None, eos_token_id=None))

STEP = dict(learner=library, learner_logits=partial(library, keep_logits=True), learner_compiled=partial(library, compile=True),
            nano=partial(plain, nano), nano_compiled=partial(plain, nano, compile=True), hf=partial(plain, hugging_face))
NAMES = dict(learner='`transformer_lm_learner`', learner_logits='`transformer_lm_learner`, `keep_logits`', learner_compiled='`transformer_lm_learner(compile=True)`', nano="nanoGPT's arrangement",
             nano_compiled="nanoGPT's arrangement, compiled", hf='Hugging Face GPT-2', write='`generate`', write_compiled='`generate(compile=True)`', write_hf='Hugging Face GPT-2 `generate`')

def step(args):
    "A row for each candidate: all are made, then take turns."
    runs,sizes,mb,first = {},{},{},{}
    for k in [k for k in args.only or STEP if k in STEP]:
        torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        runs[k],sizes[k] = STEP[k]()
        first[k] = seconds(runs[k])
        mb[k] = (torch.cuda.max_memory_allocated() - before)/2**20
        print(k, f'{mb[k]:.0f} MB, first {first[k]:.1f} s', flush=True)
    secs = in_turns(runs, args.rounds)
    for k,ts in secs.items():
        yield dict(kind='step', candidate=k, tokens_per_s=round(STEPS*BS*LENGTH/statistics.median(ts)), ratio=ratio(secs['nano'], ts) if 'nano' in secs else None, mb=round(mb[k]), first=round(first[k], 1),
                   params=sizes[k], rounds=args.rounds, **about(torch.get_num_threads(), 'transformers'))

# Writing

PROMPT,NEW = 16,128

def writers():
    ours = TransformerLM('gpt2', vocab_sz=VOCAB, max_len=LENGTH, **SHAPE).eval().to(DEVICE, torch.bfloat16)
    hf = hugging_face().eval().to(DEVICE, torch.bfloat16)
    return dict(write=lambda x: generate(ours, x, NEW), write_compiled=lambda x: generate(ours, x, NEW, compile=True),
                write_hf=lambda x: hf.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=0))

@torch.no_grad()
def write(args):
    "A row for each candidate and batch."
    for bs in (1,32):
        x = torch.randint(10, VOCAB, (bs,PROMPT), device=DEVICE)
        secs = in_turns({k:partial(f, x) for k,f in writers().items() if k in (args.only or NAMES)}, args.rounds)
        for k,ts in secs.items():
            yield dict(kind='write', candidate=k, bs=bs, tokens_per_s=round(bs*NEW/statistics.median(ts)), ratio=ratio(secs['write_hf'], ts) if 'write_hf' in secs else None, rounds=args.rounds, **about(torch.get_num_threads(), 'transformers'))

# IMDB

READ = dict(minutes=2.5, lr=3e-3, warmup=0.03, decay=0.5, wd=0.1, bs=64, seq_len=512, max_vocab=30_000, seed=0)
MODEL = dict(d_model=512, n_heads=8, n_layers=6, max_len=512, qk_norm=True, bigrams=30_000)
LABELS = dict(epochs=2, lr=5e-4, div=4, wd=0.05, bs=64, smoothing=0.1)
DROPOUT = dict(p=0.1, head_p=0.2, token_p=0.1, word_p=0.1)

def read(ids, vocab):
    "A language model of the reviews, and what to say of it."
    set_seed(READ['seed'])
    dls = lm_dls(ids, vocab, READ)
    learn = transformer_lm_learner(dls, 'default', opt_func=muon, **MODEL).to_bf16()
    start = time.perf_counter()
    with learn.no_bar(): learn.fit_wsd(minutes=READ['minutes'], lr_max=READ['lr'], warmup=READ['warmup'], decay=READ['decay'], wd=READ['wd'])
    return learn, dict(text_minutes=(time.perf_counter()-start)/60, text_loss=learn.recorder.values[-1][1], text_epochs=len(learn.recorder.lrs)/len(dls.train))

def label(reader, train, scored, vocab, seed):
    "The share of `scored` that a classifier with the encoder of `reader` gets right, in per cent, and its minutes."
    rows = [(SEP.join(ts), label, False) for ts,label in train]
    df = pd.DataFrame([*rows, (*rows[0][:2], True), (*rows[-1][:2], True)], columns=['text','label','valid']) # fastai wants something to validate on
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='valid', tok_tfm=BaseTokenizer(SEP), rules=[], text_vocab=vocab, bs=LABELS['bs'])
    set_seed(seed)
    loss = LabelSmoothingCrossEntropyFlat(eps=LABELS['smoothing'])
    learn = transformer_classifier_learner(dls, 'default', causal=True, loss_func=loss, metrics=[], opt_func=adamw, **MODEL, **DROPOUT).to_bf16()
    learn.load_encoder(reader, freeze=False)
    start = time.perf_counter()
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(LABELS['epochs'], slice(LABELS['lr']/LABELS['div'], LABELS['lr']), wd=LABELS['wd'])
    minutes = (time.perf_counter()-start)/60
    out = learn.outputs(number([ts for ts,_ in scored], vocab))
    return share(out.cpu(), targets(scored)), minutes

def imdb(args):
    "A row for each seed of the classifier."
    torch.set_num_threads(1)
    train,more = read_tokens('train'),[ts for ts,_ in read_tokens('unsup')]
    vocab = make_vocab_of([*(ts for ts,_ in train), *more], READ['max_vocab'])
    learn,said = read(number([*(ts for ts,_ in train), *more], vocab), vocab)
    print(said, flush=True)
    if args.valid: scored,train = split_off(train, held_out(1250))
    else: scored = read_tokens('test')
    for seed in args.seeds:
        acc,minutes = label(learn, train, scored, vocab, seed)
        yield dict(kind='imdb', seed=seed, split='valid' if args.valid else 'test', accuracy=acc, minutes=minutes, scored=len(scored), params=n_params(learn.model), **said,
                   recipe=dict(read=READ, model=MODEL, labels=LABELS, dropout=DROPOUT), **about(torch.get_num_threads()))

# Results

RUN = 'kind','candidate','bs','seed','split','recipe','machine' # a row takes the place of a former one of the same run

def render(rows):
    "The results as markdown: what has been measured."
    of = lambda kind: [r for r in rows if r['kind'] == kind]
    name = {'candidate':lambda r: NAMES[r['candidate']]}
    parts = dict(
        step=(f'A training step: {SHAPE["n_layers"]} layers, d_model {SHAPE["d_model"]}, {SHAPE["n_heads"]} heads, vocabulary {VOCAB:,}, {BS} × {LENGTH:,} tokens, bfloat16 by autocast, fused AdamW; medians of rounds of {STEPS} steps in turns. MB: the peak of the memory allocated.',
              {**name, 'tokens/s':'tokens_per_s', 'times nanoGPT':'ratio', 'MB':'mb', 'seconds of the first round':'first', 'parameters':'params'}),
        write=(f'Writing: a model of that shape, weights in bfloat16, a prompt of {PROMPT} tokens, {NEW} new ones, sampled from the whole distribution.',
               {**name, 'batch':'bs', 'tokens/s':'tokens_per_s', 'times Hugging Face':'ratio'}),
        imdb=('IMDB: a causal model reads the 75,000 reviews for training, then learns from labels; accuracy on the test reviews, scored once for each seed. Minutes by the clock, reading and learning.',
              {'seed':'seed', 'accuracy':'accuracy', 'minutes of reading':'text_minutes', 'epochs':'text_epochs', 'loss':'text_loss', 'minutes of learning':'minutes', 'parameters':'params'}))
    told = [f'{words}\n\n{table(of(kind), cols)}' for kind,(words,cols) in parts.items() if of(kind)]
    return '\n'.join(['# One GPU\n\nWritten by `python benchmarks/gpu.py`.\n', *told, ran_with(rows, env=None)])

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('what', nargs='*', choices=['step','write','imdb'], default=['step','write','imdb'])
    p.add_argument('--only', nargs='+', choices=NAMES, help='candidates of `step` and `write`')
    p.add_argument('--rounds', type=int, default=5, help='rounds of `step` and `write`; fewer than three are only tried')
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1,2], help='of the classifiers of `imdb`')
    p.add_argument('--valid', action='store_true', help='`imdb`: score 2,500 reviews that are kept back, for choosing; the row is printed, not recorded')
    p.add_argument('--set', nargs='+', default=[], metavar='NAME=VALUE', help='change the recipe of `imdb`: minutes=1 d_model=256')
    p.add_argument('--out', type=Path, default=HERE/'results', help='folder of the results')
    args = p.parse_args()
    for s in args.set:
        k,v = s.split('=')
        part = next(o for o in (READ, MODEL, LABELS, DROPOUT) if k in o)
        part[k] = ast.literal_eval(v)
    for what in args.what:
        for row in dict(step=step, write=write, imdb=imdb)[what](args):
            print(json.dumps(row), flush=True)
            if args.valid or what != 'imdb' and args.rounds < 3: continue
            rows = [r for r in read_rows(args.out/'gpu.jsonl') if any(r.get(k) != row.get(k) for k in RUN)] + [row]
            record('gpu', rows, render(rows), args.out)

if __name__ == '__main__': main()
