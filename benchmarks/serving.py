"""A trained model at work: single texts from string to label, many threads, a fresh process, ONNX on IMDB's test reviews, weights of eight bits.

The models are trained once, in minutes, and kept under `serving` in fastai's model folder. Candidates take turns in one process; each figure is given
by the clock and by the processor's seconds, which other jobs on the machine disturb less. Every part writes its rows to results/serving.jsonl."""
import os, resource, shutil, sys, tempfile, textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial
sys.modules.setdefault('torchvision', None) # transformers looks at it, and one that is not torch's own hinders it
from fastai.text.all import *
from fastai_txf.all import *
from fastai_txf.base.shadow import shadow
from fastai_txf.generate.decode import generate
from fastai_txf.model.int8 import row_scales
from common import *

FOLDER = fastai_path('model')/'serving'
WORDS = 200 # of a single text

# Models

def files(part): return [f for label in ('neg','pos') for f in sorted((untar_data(URLs.IMDB)/part/label).glob('*.txt'))]

def reviews(part, n=None):
    "A frame of `n` reviews, as many of each label, or of all."
    fs = files(part)
    if n is not None: fs = [fs[i] for i in np.linspace(0, len(fs)-1, n).round().astype(int)]
    df = pd.DataFrame(dict(text=[f.read_text(encoding='utf8') for f in fs], label=[f.parent.name for f in fs]))
    return df.assign(valid=np.arange(len(df)) % 25 == 0, tags=[*map(tags, df.text, df.label)])

def tags(text, label):
    "Several labels: what a review says, how long it is, two words that are in it."
    return ';'.join([label] + ['long']*(len(text) > 1200) + ['acting']*('act' in text) + ['end']*('end' in text.lower().split()))

def loaders(df, label='label', tok=FastSpacyTokenizer, **kw):
    return TransformerDataLoaders.from_df(df, text_col='text', label_col=label, valid_col='valid', tok_tfm=tok(), min_freq=8, max_vocab=30_000, bs=32, **kw)

def train_clf():
    learn = transformer_classifier_learner(loaders(reviews('train')), 'reviews', metrics=accuracy)
    learn.fit_minutes(3, 1.5e-3, wd=0.3)
    return learn

def train_multi():
    learn = transformer_classifier_learner(loaders(reviews('train', 5000), 'tags', label_delim=';'), max_len=256, metrics=accuracy_multi)
    learn.fit_minutes(1, 1e-3)
    return learn

def train_lm():
    dls = TransformerDataLoaders.from_df(reviews('train', 5000), text_col='text', is_lm=True, valid_col='valid', tok_tfm=FastSpacyTokenizer(), max_vocab=10_000, bs=16, seq_len=256)
    learn = transformer_lm_learner(dls, 'default', d_model=256, n_heads=8, n_layers=4, opt_func=adamw, metrics=[accuracy, Perplexity()])
    learn.fit_minutes(2, 1e-3)
    return learn

def train_deep():
    "Four layers of width 256: its forward pass is what a text costs. Its speed is what counts."
    learn = transformer_classifier_learner(loaders(reviews('train', 400)), d_model=256, n_heads=8, n_layers=4, metrics=accuracy)
    learn.fit_minutes(0.2, 1e-4)
    return learn

def train_bert():
    "Of the shape that `to_hf` takes; its weights are those of chance but for a few steps: its speed is what counts."
    learn = transformer_classifier_learner(loaders(reviews('train', 400), tok=partial(BPETokenizer, 2000)), 'bert', metrics=accuracy)
    learn.fit_one_cycle(1, 1e-4)
    return learn

TRAIN = dict(clf=train_clf, multi=train_multi, lm=train_lm, bert=train_bert, deep=train_deep)

def published(name, onnx=False):
    "The folder of a model, or of the same in ONNX: made once."
    folder = FOLDER/name
    if not folder.exists():
        set_seed(0)
        learn = TRAIN[name]()
        learn.publish(folder)
        if name == 'bert': hugging_face(learn)
    if not onnx: return folder
    at = FOLDER/f'{name}_onnx'
    return at if at.exists() else to_onnx(folder, at)

def hugging_face(learn):
    "The same model as a folder of `transformers`, where this library writes one."
    try: from fastai_txf.share.to_hf import to_hf
    except ImportError: return
    to_hf(learn, FOLDER/'bert_hf')

# Single texts

def short_texts(n):
    "The first words of `n` test reviews that have as many."
    texts = [' '.join(t.split()[:WORDS]) for t in reviews('test', min(3*n, 25_000)).text if len(t.split()) >= WORDS]
    return texts[:n]

def bare(pred):
    "Tokenizing and the model's forward pass, nothing else."
    model = shadow(pred.model)
    @torch.no_grad()
    def run(text): return model(pred.codec.encode(text)[0][None])
    return run

def learner(name):
    "A learner with the published weights."
    pred = load_published(published(name))
    df = reviews('train', 400)
    return learner_from(published(name), loaders(df, text_vocab=pred.codec.vocab, tok=lambda: pred.codec.tok))

def awd():
    "fastai's AWD_LSTM with its default tokenizer, weights of chance: its speed is what counts."
    df = reviews('train', 400)
    learn = text_classifier_learner(TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='valid', bs=32, num_workers=0, n_workers=0), AWD_LSTM, pretrained=False)
    learn.remove_cb(learn.progress)
    return learn

def pipeline():
    "`transformers`' pipeline on the model that `to_hf` has written."
    from transformers import pipeline
    pipe = pipeline('text-classification', model=str(FOLDER/'bert_hf'), device=-1)
    return partial(pipe, truncation=True)

SINGLE = {
    'bare':('tokenizing and the bare forward pass', lambda: bare(load_published(published('clf')))),
    'predictor':('`load_published(folder).predict`', lambda: load_published(published('clf')).predict),
    'learner':('`learn.predict`', lambda: learner('clf').predict),
    'int8':("`load_published(folder, dtype='int8').predict`", lambda: load_published(published('clf'), dtype='int8').predict),
    'onnx':('`OnnxPredictor(folder).predict`', lambda: OnnxPredictor(published('clf', True), threads=1).predict),
    'awd':("fastai's `learn.predict`, AWD_LSTM", lambda: awd().predict),
    'predictor_bert':('`load_published(folder).predict`, BERT shape', lambda: load_published(published('bert')).predict),
    'onnx_bert':('`OnnxPredictor(folder).predict`, BERT shape', lambda: OnnxPredictor(published('bert', True), threads=1).predict),
    'pipeline':("`transformers`' `pipeline` on the same", pipeline)}

def spent(f, x):
    "Milliseconds of a call, by both clocks."
    start = {k:clock() for k,clock in CLOCKS.items()}
    f(x)
    return {k:1000*(clock()-start[k]) for k,clock in CLOCKS.items()}

def single(args):
    "One row for each candidate: the texts one by one, all candidates on each before the next."
    runs,texts = {}, short_texts(args.texts)
    for k,(_,make) in SINGLE.items():
        if k in ('pipeline','predictor_bert','onnx_bert'):
            published('bert')
            if k == 'pipeline' and not (FOLDER/'bert_hf').exists(): continue
        runs[k] = make()
    for f in runs.values():
        for t in texts[:3]: f(t)
    times = {k:[] for k in runs}
    for t in texts[3:]:
        for k,f in runs.items(): times[k].append(spent(f, t))
    for k,ts in times.items():
        stats = {f'{clock}_{name}':round(float(np.percentile([o[clock] for o in ts], q)), 3) for clock in CLOCKS for name,q in (('median',50),('p99',99))}
        yield dict(part='single', candidate=k, texts=len(ts), **stats)

# Many threads, a fresh process

SERVERS = dict(
    predictor=('`Predictor`, a layer of width 64', 'many', lambda: load_published(published('clf'))),
    pool=('`PredictorPool`, two processes, a layer of width 64', 'many', lambda: PredictorPool(published('clf'), 2)),
    deep=('`Predictor`, 4 layers of width 256', 'many_deep', lambda: load_published(published('deep'))),
    onnx=('`OnnxPredictor`, a layer of width 64', 'many', lambda: OnnxPredictor(published('clf', True), threads=1)))

def threads(args):
    "The same answers from eight threads, and how much faster."
    torch.set_num_threads(1)
    for k,(_,n,make) in SERVERS.items():
        pred,texts = make(), short_texts(getattr(args, n))
        with ThreadPoolExecutor(8) as pool: [*pool.map(pred.predict, texts[:400])] # the commonest words are known, processes have begun
        start = {c:clock() for c,clock in CLOCKS.items()}
        alone = [*map(pred.predict, texts)]
        mid = {c:clock() for c,clock in CLOCKS.items()}
        with ThreadPoolExecutor(8) as pool: together = [*pool.map(pred.predict, texts)]
        end = {c:clock() for c,clock in CLOCKS.items()}
        took = {f'{c}_{n}':round(b[c]-a[c], 2) for c in CLOCKS for n,a,b in (('alone',start,mid), ('together',mid,end))}
        if k == 'pool': took = {n:v for n,v in took.items() if n.startswith('wall')} # its processes have clocks of their own
        yield dict(part='threads', candidate=k, texts=len(texts), same=alone == together, times=took['wall_alone']/took['wall_together'], **took)

HIDE = """
import sys, time
start = time.perf_counter(), time.process_time()
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {hidden}: raise ImportError(name)
sys.meta_path.insert(0, Missing())
"""
FRESH = dict(
    predictor=(('fastai','fastcore','pandas'), 'from fastai_txf.share.bundle import load_published as load'),
    onnx=(('fastai','fastcore','pandas','torch'), 'from fastai_txf.share.onnx import OnnxPredictor as load'))

def fresh(args):
    "Import, load and first answer in a process without fastai, the best of three."
    for k,(hidden,code) in FRESH.items():
        at = published('clf', k == 'onnx')
        code = HIDE.format(hidden=hidden) + f'{code}\nload({str(at)!r}).predict("a warm film")\nprint(time.perf_counter()-start[0], time.process_time()-start[1])'
        outs = [subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True, env={**os.environ, 'PYTHONPATH':str(HERE.parent)}).stdout for _ in range(3)]
        wall,cpu = map(min, zip(*(map(float, o.split()) for o in outs)))
        yield dict(part='fresh', candidate=k, wall_s=round(wall, 2), processor_s=round(cpu, 2))

# ONNX on IMDB

def onnx(args):
    "How many labels of IMDB's test reviews are others in ONNX, and in eight bits."
    df = reviews('test', args.n)
    for name in ('clf','multi'):
        pred,small = (load_published(published(name), dtype=d) for d in (None,'int8'))
        onnxs = OnnxPredictor(published(name, True), threads=args.threads)
        ids = pred.codec.encode([*df.text])
        out = dict(torch=pred.outputs(ids).numpy(), onnx=onnxs.outputs([o.tolist() for o in ids]), int8=small.outputs(ids).numpy())
        if name == 'clf': labels = {k:o.argmax(1) for k,o in out.items()}
        else: labels = {k:o > 0 for k,o in out.items()}
        vocab = pred.labels['names']
        targ = df.label.map(vocab.index).to_numpy() if name == 'clf' else np.array([[v in t.split(';') for v in vocab] for t in df.tags])
        for k in out:
            yield dict(part='onnx', candidate=k, task=name, texts=len(df), flipped=int((labels[k] != labels['torch']).sum()), off=float(np.abs(out[k]-out['torch']).max()), accuracy=100*float((labels[k] == targ).mean()))

# Weights of eight bits

class PackedLinear(nn.Module):
    "Weights of eight bits, inputs in bf16: torch's `_weight_int8pack_mm`."
    def __init__(self, linear):
        super().__init__()
        scale = row_scales(linear.weight.detach())
        self.q,self.scale = (linear.weight.detach()/scale[:,None]).round().to(torch.int8),scale.bfloat16()
        self.bias = None if linear.bias is None else linear.bias.detach()
    def forward(self, x):
        y = torch._weight_int8pack_mm(x.reshape(-1, x.shape[-1]).bfloat16(), self.q, self.scale).float()
        return (y if self.bias is None else y+self.bias).view(*x.shape[:-1], -1)

PackedLinear.__module__ = 'fastai_txf.benchmark' # a step of it is the same calls each time

def packed(model):
    res = shadow(model)
    for m in [*res.modules()]:
        for k,part in [*m.named_children()]:
            if type(part) is nn.Linear: setattr(m, k, PackedLinear(part))
    return res

def quantized(data, how):
    "A graph that onnxruntime has quantized."
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
    import onnx as onnx_format
    with tempfile.TemporaryDirectory() as at:
        old,new = f'{at}/old.onnx',f'{at}/new.onnx'
        Path(old).write_bytes(data)
        if how == 'dynamic': quantize_dynamic(old, new, per_channel=True, weight_type=QuantType.QInt8)
        else:
            config = DefaultWeightOnlyQuantConfig(block_size=64, is_symmetric=True, accuracy_level=4, bits=8)
            quantizer = MatMulNBitsQuantizer(onnx_format.load(old), algo_config=config)
            quantizer.process()
            quantizer.model.save_model_to_file(new)
        return Path(new).read_bytes()

def by_session(data, x, n):
    "A function that writes `n` tokens with a graph."
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=['CPUExecutionProvider'])
    shape = {o.name:o.shape for o in session.get_inputs()}['keys']
    empty = np.zeros((shape[0], 1, shape[2], 0, shape[4]), np.float32)
    def run():
        ids,keys,values = x.numpy(),empty,empty
        for _ in range(n):
            logits,keys,values = session.run(None, dict(ids=ids, first=np.array(0), keys=keys, values=values))
            ids = logits[:,-1:].argmax(-1)
    return run

def decoders(model, n, args):
    "Functions that write `n` tokens."
    x = torch.randint(2, model.config.vocab_sz, (1,16), generator=torch.Generator().manual_seed(0))
    run = lambda m, **kw: (lambda: generate(m, x, n, temperature=0, **kw))
    res = dict(fp32=run(model), int8=run(to_int8(model)), packed=run(packed(model)))
    if not args.no_compile: res['compiled'] = run(model, compile=True)
    if args.no_onnx: return res
    from fastai_txf.share.graphs import export_graphs
    graph = export_graphs(model)['model.onnx']
    return {**res, 'onnx':by_session(graph, x, n), **{f'onnx_{how}':by_session(quantized(graph, how), x, n) for how in ('dynamic','nbits')}}

SHAPES = [(256,768),(256,1024),(1024,256),(256,10_000),(512,2048),(512,10_000)]

def maps(args):
    "Microseconds of the processor for one map, the best of six: in fp32 and with both ways to eight bits."
    torch.set_num_threads(1)
    for n_in,n_out in SHAPES:
        torch.manual_seed(0)
        linear = nn.Linear(n_in, n_out)
        runs = dict(fp32=linear, int8=to_int8(nn.Sequential(linear))[0], packed=PackedLinear(linear))
        for rows in (1, 8, 256):
            if rows == 256 and n_out > 4096: continue
            x,n = torch.randn(rows, n_in), max(3, int(2e8/(2*rows*n_in*n_out + 2e5)))
            with torch.no_grad():
                times = {k:[] for k in runs}
                for _ in range(6):
                    for k,f in runs.items(): times[k].append(spent(lambda x: [f(x) for _ in range(n)], x)['processor']/n)
                off = {k:float((f(x)-linear(x)).norm()/linear(x).norm()) for k,f in runs.items()}
            for k,ts in times.items(): yield dict(part='maps', candidate=k, n_in=n_in, n_out=n_out, rows=rows, processor_us=round(1000*min(ts), 1), off=off[k])

def rates(runs, rounds, n):
    "Tokens a second by both clocks, and the ratios to the compiled rate (or the plain one)."
    times = {k:[] for k in runs}
    for r in range(rounds+1):
        for k,f in runs.items():
            t = spent(lambda _: f(), None)
            if r: times[k].append(t)
    base = 'compiled' if 'compiled' in runs else 'fp32'
    for k,ts in times.items():
        row = {f'{c}_tokens_per_s':round(1000*n/statistics.median(t[c] for t in ts)) for c in CLOCKS}
        yield dict(candidate=k, base=base, **row, **{f'{c}_ratio':ratio([t[c] for t in times[base]], [t[c] for t in ts]) for c in CLOCKS})

def perplexity(model, ids):
    return math.exp(token_losses(model, ids, 256).mean().item())

def int8(args):
    "Rates of decoding, weights of chance: what a token costs does not depend on them."
    torch.set_num_threads(1)
    for width in args.widths:
        torch.manual_seed(0)
        model = TransformerLM(vocab_sz=10_000, d_model=width, n_heads=8, n_layers=4, max_len=512).eval()
        for row in rates(decoders(model, args.tokens, args), args.rounds, args.tokens): yield dict(part='int8', width=width, layers=4, rounds=args.rounds, **row)

def quality(args):
    "The perplexity of the trained language model on test reviews."
    pred = load_published(published('lm'))
    ids = torch.cat(pred.codec.encode([*reviews('test', args.lm_texts).text]))
    base = perplexity(pred.model, ids)
    for k,m in dict(fp32=pred.model, int8=to_int8(pred.model), packed=packed(pred.model)).items():
        ppl = perplexity(m, ids)
        yield dict(part='quality', candidate=k, texts=args.lm_texts, perplexity=ppl, change=100*(ppl/base-1))

# Results

PARTS = dict(single=single, threads=threads, fresh=fresh, onnx=onnx, maps=maps, int8=int8, quality=quality)
DECODERS = dict(fp32='`generate`, fp32', compiled='`generate(compile=True)`, fp32', int8='`to_int8`: `torch.ops.quantized.linear_dynamic`', packed='`torch._weight_int8pack_mm`, inputs in bf16',
                onnx="onnxruntime on `to_onnx`'s graph, fp32", onnx_dynamic='the same, `quantize_dynamic(per_channel=True)`', onnx_nbits="the same, `MatMulNBits` of 8 bits, blocks of 64")

def load(): return ' '.join(f'{o:.1f}' for o in os.getloadavg()) if hasattr(os, 'getloadavg') else None

def by_bare(rows):
    "`single` rows with the ratio of processor medians to the bare pass."
    base = {r['candidate']:r['processor_median'] for r in rows}
    return [{**r, 'by_bare':r['processor_median']/base['bare'] if 'bert' not in r['candidate'] and r['candidate'] != 'pipeline' else None,
             'rate':base['awd']/r['processor_median'] if 'awd' in base else None} for r in rows]

def render(rows):
    "The results as markdown."
    of = lambda part: [r for r in rows if r['part'] == part]
    res = "# A trained model at work\n\nWritten by `python benchmarks/serving.py` (the command of each part below). Candidates take turns in one process, one thread. Milliseconds by the clock and, less disturbed by other jobs, of the processor. " \
          "The load is that of the machine while the part ran: above the number of cores, others were at work too.\n"
    if part := of('single'):
        cols = {'candidate':lambda r: SINGLE[r['candidate']][0], 'processor ms':'processor_median', 'p99':'processor_p99', 'clock ms':'wall_median', 'p99 ':'wall_p99', 'by the bare pass':'by_bare', "times AWD_LSTM's rate":'rate'}
        res += f"\n## Single texts of {WORDS} words, from string to label\n\nMedians and 99th percentiles of {part[0]['texts']} texts.\n\n{table(by_bare(part), cols)}"
    if part := of('threads'):
        cols = {'candidate':lambda r: SERVERS[r['candidate']][0], 'texts':'texts', 'same answers':lambda r: 'yes' if r['same'] else 'no', 'one after the other, s':'wall_alone', 'eight threads, s':'wall_together',
                'times':'times', 'processor s, one after the other':'processor_alone', 'eight threads':'processor_together'}
        res += f"\n## Eight threads at once\n\nTexts of {WORDS} words.\n\n{table(part, cols)}"
    if part := of('fresh'):
        res += f"\n## Import, load and first answer in a fresh process without fastai\n\nThe best of three.\n\n{table(part, {'candidate':lambda r: SINGLE[r['candidate']][0], 'clock s':'wall_s', 'processor s':'processor_s'})}"
    if part := of('onnx'):
        cols = {'model':lambda r: dict(clf='one label', multi='several labels')[r['task']], 'candidate':'candidate', 'test reviews':'texts', 'labels that differ':'flipped', 'largest difference of a logit':lambda r: f"{r['off']:.1e}", 'accuracy':'accuracy'}
        res += f"\n## IMDB's test reviews: torch, ONNX, eight bits\n\n{table(part, cols)}"
    if part := of('maps'):
        by = {(r['n_in'], r['n_out'], r['rows'], r['candidate']):r for r in part}
        of_map = lambda k: (lambda r: f"{by[r['n_in'], r['n_out'], r['rows'], k]['processor_us']:,.0f}")
        cols = {'map':lambda r: f"{r['n_in']} → {r['n_out']:,}", 'rows':'rows', 'fp32':of_map('fp32'), '`quantized.linear_dynamic` (kept)':of_map('int8'), '`_weight_int8pack_mm`':of_map('packed')}
        res += f"\n## One linear map\n\nMicroseconds of the processor, the best of six rounds.\n\n{table([r for r in part if r['candidate'] == 'fp32'], cols)}"
    if part := of('int8'):
        cols = {'candidate':lambda r: DECODERS[r['candidate']], 'width':'width', 'tokens a processor second':'processor_tokens_per_s', 'tokens/s':'wall_tokens_per_s', 'ratio':'processor_ratio', 'ratio by the clock':'wall_ratio'}
        res += f"\n## Decoding with weights of eight bits\n\n4 layers, 8 heads, vocabulary 10,000, one text, medians of {part[0]['rounds']} rounds. The ratio is that to {DECODERS[part[0]['base']]} of the same width. Kept: `to_int8`.\n\n{table(part, cols)}"
    if part := of('quality'):
        cols = {'candidate':lambda r: DECODERS[r['candidate']], 'test reviews':'texts', 'perplexity':'perplexity', 'change in %':lambda r: f"{r['change']:+.3f}"}
        res += f"\n## Perplexity with weights of eight bits\n\nA language model of 4 layers and width 256, trained for some minutes.\n\n{table(part, cols)}"
    lines = dict.fromkeys((r['part'], r['command'], r['features'], r['load']) for r in rows)
    res += '\n' + ''.join(f'- {part}: `{command}`; {features}; load {load}\n' for part,command,features,load in lines)
    return res + ran_with(rows, env=None)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), help='parts')
    p.add_argument('--n', type=int, default=None, help="part onnx: test reviews; default: all 25,000")
    p.add_argument('--texts', type=int, default=300, help='part single: texts')
    p.add_argument('--many', type=int, default=10_000, help='part threads: texts')
    p.add_argument('--many-deep', type=int, default=500, help='part threads: texts for the model of four layers')
    p.add_argument('--tokens', type=int, default=256, help='part int8: tokens to write')
    p.add_argument('--rounds', type=int, default=5, help='part int8: rounds')
    p.add_argument('--lm-texts', type=int, default=200, help='part quality: reviews')
    p.add_argument('--widths', nargs='+', type=int, default=[256, 512], help='part int8: widths')
    p.add_argument('--no-compile', action='store_true', help='part int8: without the compiled step')
    p.add_argument('--no-onnx', action='store_true', help='part int8: without onnxruntime')
    p.add_argument('--threads', type=int, default=1, help='threads of torch')
    p.add_argument('--out', type=Path, default=None, help='folder of the results; without it, numbers other than the usual are only tried')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    tried = args.out is None and unusual(args, p, 'n', 'texts', 'many', 'many_deep', 'tokens', 'rounds', 'lm_texts', 'widths', 'no_compile', 'no_onnx')
    out = args.out or HERE/'results'
    for part in args.only:
        command = f"python benchmarks/serving.py {' '.join(sys.argv[1:])}".strip()
        new = [{**r, 'command':command, 'features':features(), **about(torch.get_num_threads(), 'onnxruntime', 'transformers')} for r in PARTS[part](args)]
        new = [{**r, 'load':load()} for r in new]
        if tried:
            print(render(new))
            continue
        rows = [r for r in read_rows(out/'serving.jsonl') if r['part'] != part] + new
        rows.sort(key=lambda r: [*PARTS].index(r['part']))
        record('serving', rows, render(rows), out)
    if not tried: print((out/'serving.md').read_text())

if __name__ == '__main__': main()
