"""Multi30k, German to English: this library's encoder–decoder beside `nn.Transformer` of the same size, given the same data and schedule, and with `muon` in fewer epochs; with it English to German, too.

Each candidate and seed runs in a process of its own and adds a line to results/multi30k.jsonl; what is there already is not run again."""
import hashlib, sacrebleu
from fastai.text.all import *
from fastai_txf.all import *
from common import *

RECIPES = {name:dict(epochs=14, lr=1.5e-3, bs=64, vocab_sz=6000, num_beams=5, length_penalty=1., fit=dict(wd=0.01, pct_start=0.1, div=10.), label_smoothing=0.1,
                     model=dict(d_model=192, n_heads=6, n_layers=3, d_ff=384, p=0.15, emb_p=0.15)) for name in ('txf','torch')}
RECIPES['muon'] = RECIPES['txf'] | dict(epochs=10, lr=5e-3, opt='muon', bf16='_bf16' in features(), fit=dict(wd=0.1, pct_start=0.1, div=10.)) # bfloat16 where the processor has units for it
RECIPES['back'] = RECIPES['muon'] | dict(src='en', tgt='de')

NAMES = dict(txf='`transformer_seq2seq_learner`', torch='the same learner around `nn.Transformer`', muon='`transformer_seq2seq_learner` with `muon`', back='the same, English to German')

# Data

def read(part):
    "The pairs of 'train', 'val' or 'test', German and English."
    path = fastai_path('data')/'multi30k'
    if not (path/f'{part}.de').exists(): raise FileNotFoundError(f'{path}/{part}.de is missing: put the Multi30k texts (github.com/multi30k/dataset, task 1, raw; '
                                                                 'test_2016_flickr as test) there as train, val and test with the endings .de and .en')
    return pd.DataFrame({l:(path/f'{part}.{l}').read_text(encoding='utf8').splitlines() for l in ('de','en')})

def make_dls(n, recipe):
    "Byte pairs shared by both languages, learned from the training texts."
    train,val = read('train')[:n],read('val')[:n]
    df = pd.concat([train.assign(is_valid=False), val.assign(is_valid=True)], ignore_index=True)
    return Seq2SeqDataLoaders.from_df(df, src_col=recipe.get('src', 'de'), tgt_col=recipe.get('tgt', 'en'), valid_col='is_valid', tok_tfm=BPETokenizer(recipe['vocab_sz']), bs=recipe['bs'], val_bs=128)

# Candidates

class TorchTransformer(nn.Module):
    "`nn.Transformer` with embeddings, shared by both sides and the output layer, and sinusoidal positions."
    def __init__(self, c):
        super().__init__()
        self.pad_idx,self.scale = c.pad_idx,c.d_model**0.5
        self.emb,self.drop = nn.Embedding(c.vocab_sz, c.d_model),nn.Dropout(c.emb_p)
        self.core = nn.Transformer(c.d_model, c.n_heads, c.n_layers, c.n_layers, c.d_ff, c.p, 'gelu', batch_first=True, norm_first=True)
        self.head = nn.Linear(c.d_model, c.vocab_sz, bias=False)
        nn.init.normal_(self.emb.weight, std=c.d_model**-0.5)
        self.head.weight = self.emb.weight

    def embed(self, x):
        pos = torch.arange(x.shape[1], device=x.device)
        return self.drop(self.emb(x)*self.scale + sinusoids(pos, self.emb.embedding_dim))

    def forward(self, src, tgt):
        pad,future = src == self.pad_idx, nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device) < 0
        return self.head(self.core(self.embed(src), self.embed(tgt), tgt_mask=future, src_key_padding_mask=pad, memory_key_padding_mask=pad, tgt_is_causal=True))

ARCHS = dict(txf=Seq2SeqTransformer, torch=TorchTransformer, muon=Seq2SeqTransformer, back=Seq2SeqTransformer)

def score(learn, texts, recipe, num_beams):
    "BLEU of the translations, cased and with their spaces and full stops, and the minutes they took."
    src,tgt = recipe.get('src', 'de'), recipe.get('tgt', 'en')
    start = time.perf_counter()
    length_penalty = recipe['length_penalty'] if num_beams > 1 else 1.
    new = learn.predict(texts[src], num_beams=num_beams, length_penalty=length_penalty, n_tokens=100)
    bleu = sacrebleu.metrics.BLEU()
    return bleu.corpus_score(new, [list(texts[tgt])]).score, (time.perf_counter()-start)/60, str(bleu.get_signature()), new

def ask(name, seed, args):
    "What one run is asked to do."
    return dict(candidate=name, split='valid' if args.valid else 'test', seed=seed, n=args.n, recipe=change(RECIPES[name], args.set))

def train(learn, seed, row):
    "Train, or take the weights of the same training before: the validation and the test pairs are translated by one model. What to say of the training."
    recipe = {k:v for k,v in row['recipe'].items() if k not in ('num_beams','length_penalty')}
    file = fastai_path('model')/'multi30k'/f"{hashlib.md5(json.dumps([row['candidate'], seed, row['n'], recipe]).encode()).hexdigest()}.pth"
    if not file.exists():
        count = Count(pad_index(learn.dls.vocab[0]))
        with learn.no_bar(): learn.fit_one_cycle(recipe['epochs'], recipe['lr'], cbs=count, **recipe['fit'])
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(weights=learn.model.state_dict(), about=dict(valid_loss=float(learn.recorder.values[-1][1]), **count.row)), file)
    saved = torch.load(file)
    learn.model.load_state_dict(saved['weights'])
    return saved['about']

def learner(name, recipe, dls):
    opt = dict(adamw=adamw, muon=muon)[recipe.get('opt', 'adamw')]
    learn = transformer_seq2seq_learner(dls, arch=ARCHS[name], label_smoothing=recipe['label_smoothing'], opt_func=opt, metrics=TokenAccuracy(), **recipe['model'])
    return learn.to_bf16() if recipe.get('bf16') else learn

def speed(args, rounds=5, steps=40):
    "A row: how long the whole training with `muon` takes beside that with `adamw`, by the steps of both in turns."
    torch.set_num_threads(args.threads)
    set_seed(0)
    dls,recipes = make_dls(args.n, RECIPES['txf']), {k:RECIPES[k] for k in ('txf','muon')}
    times = in_turns({k:partial(fit_steps, learner(k, r, dls), steps, r['lr']) for k,r in recipes.items()}, rounds, time.process_time)
    epochs = {k:r['epochs'] for k,r in recipes.items()}
    share = epochs['muon']/epochs['txf']*ratio(times['muon'], times['txf'])
    return dict(candidate='muon', split='speed', step_ms={k:1000*statistics.median(ts)/steps for k,ts in times.items()}, epochs=epochs, share=share, **about(args.threads))

def run(name, seed, args):
    "Train, then translate once; the row for the results."
    torch.set_num_threads(args.threads)
    set_seed(seed)
    row = ask(name, seed, args)
    recipe = row['recipe']
    learn = learner(name, recipe, make_dls(args.n, recipe))
    done,texts = train(learn, seed, row),read('val' if args.valid else 'test')[:args.n]
    greedy,*_ = score(learn, texts, recipe, 1)
    bleu,minutes,signature,new = score(learn, texts, recipe, recipe['num_beams'])
    for o in zip(texts.de[:5], texts.en[:5], new): print(*o, sep='\n  ', flush=True)
    return {**row, 'bleu':bleu, 'greedy':greedy, 'signature':signature, 'pairs':len(texts), **done, 'predict_minutes':round(minutes, 2), 'params':n_params(learn.model), **about(args.threads, 'sacrebleu', 'tokenizers')}

# Results

COLS = {'candidate':lambda r: NAMES[r['candidate']] + tried(r), 'recipe':lambda r: ' '.join(own_settings(r, RECIPES)) or '–', 'seed':'seed', 'BLEU, beam search':'bleu', 'BLEU, greedy':'greedy',
        'epochs':lambda r: r['recipe']['epochs'], 'source tokens seen':'tokens', 'minutes of training':'minutes', 'of the processor':'core_minutes', 'minutes of beam search':'predict_minutes', 'parameters':'params'}

def render(rows):
    "The results as markdown."
    res = '# Multi30k, sacrebleu\n\nWritten by `python benchmarks/multi30k.py`. German to English, but for the line that says otherwise. Corpus BLEU of plain text, cased, against the one reference. The minutes are those of training alone.\n'
    for split,title in dict(test='test_2016_flickr, translated once at the end of each run', valid='The validation pairs, on which everything was chosen').items():
        mine = [r for r in rows if r['split']==split]
        if mine: res += f'\n## {title}\n\n{table(mine, COLS)}\n{ran_with(mine)}- {mine[-1]["signature"]}\n'
    for r in rows:
        if r['split'] == 'speed':
            res += (f"\n## Time of a step, in turns\n\n{r['step_ms']['txf']:.0f} ms of the processor with `adamw` in fp32, {r['step_ms']['muon']:.0f} ms with `muon`; "
                    f"for {r['epochs']['txf']} and {r['epochs']['muon']} epochs: **{100*r['share']:.0f} %** of the time (`--speed`).\n\n{ran_with([r])}")
    return res

def main():
    p = options(__doc__, RECIPES)
    p.add_argument('--seeds', nargs='+', type=int, default=[0], help='of each candidate')
    p.add_argument('--valid', action='store_true', help='score on the validation pairs, not on the test set')
    p.add_argument('--speed', action='store_true', help='only the time of a step of `txf` and of `muon`, in turns')
    args = p.parse_args()
    if args.speed:
        file,row = out_file(args, 'multi30k'), speed(args)
        print(json.dumps(row))
        if file is None: return
        add_row(file, row)
        return file.with_suffix('.md').write_text(render(read_rows(file)))
    run_all([(name, seed) for name in args.only for seed in args.seeds], args, out_file(args, 'multi30k'), ask, run, render)

if __name__ == '__main__': main()
