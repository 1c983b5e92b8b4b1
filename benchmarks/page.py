"""The results page, `benchmarks/README.md`, a picture for each of its questions under `results/pictures`, and the table of the README,
from the rows under `results`. `python benchmarks/page.py`; with `--check` nothing is written, and what is not up to date is named.

What stands between `<!-- more: … -->` and `<!-- /more -->` is left as it is."""
import json, re, statistics, sys
from pathlib import Path

HERE = Path(__file__).parent
README,PAGE,PICTURES = HERE.parent/'README.md', HERE/'README.md', HERE/'results'/'pictures'
OURS,PEER = '#2166ac','#9aa0a6'
PY = '.venv/bin/python benchmarks/'

# Rows

def rows(name, **want):
    "The rows of `results/{name}.jsonl` that have these values."
    rs = [json.loads(l) for l in (HERE/'results'/f'{name}.jsonl').read_text(encoding='utf-8').splitlines()]
    return [r for r in rs if all(r.get(k) == v for k,v in want.items())]

def one(name, **want):
    "The only row with these values."
    got = rows(name, **want)
    if len(got) != 1: raise ValueError(f'results/{name}.jsonl has {len(got)} rows with {want}')
    return got[0]

def best_text(name, candidate):
    "The rows of the test set of a candidate that was pretrained, those of its longest reading."
    rs = rows(name, candidate=candidate, split='test')
    most = max(r['text_minutes'] for r in rs)
    return [r for r in rs if r['text_minutes'] == most]

def mean(rs, key): return statistics.fmean(r[key] for r in rs)
def each(rs, key, f='.1f'): return ', '.join(format(r[key], f) for r in sorted(rs, key=lambda r: r['seed'] or 0))
def span(rs, key, f='.0f'):
    "The least and the most, once where they are the same."
    lo,hi = (format(g(r[key] for r in rs), f) for g in (min, max))
    return lo if lo == hi else f'{lo} to {hi}'

# Writing

def table(head, lines): return '\n'.join('| ' + ' | '.join(map(str, l)) + ' |' for l in [head, ['---']*len(head), *lines]) + '\n'

def measured(rs):
    "With what the rows were measured, and when; the versions without those that do not matter here."
    def short(v): return re.sub(r'(, (scikit-learn|spacy) \S+?)(?=,|$)', '', v)
    keys = dict.fromkeys((r['machine'], short(r['versions'])) for r in rs)
    days = sorted({r['date'] for r in rs})
    commits = ', '.join(dict.fromkeys(r['commit'] for r in rs))
    return 'Measured on ' + '; '.join(f'{m} ({v})' for m,v in keys) + f'; {" and ".join(dict.fromkeys((days[0], days[-1])))}; commits {commits}.'

def question(anchor, title, text, picture, tab, commands, rs, name, more=''):
    "A section: the question, its picture, its table, how to ask it again."
    cmds = '\n'.join(f'{PY}{c}' for c in commands)
    return (f'## {title}\n\n{text}\n\n![{picture[1]}](results/pictures/{picture[0]}.png)\n\n{tab}\n{more}'
            f'```sh\n{cmds}\n```\n\n{measured(rs)} [All rows](results/{name}.md).\n')

# Published figures: who, figure, source

PUBLISHED_IMDB = [
    ("the fastai workshop's transformer (k 256, 8 wide heads, depth 4, 256 tokens, 6 epochs)", '78.0', '[Londögård 2021](https://blog.londogard.com/posts/2021-02-18-transformers-explained/transformers-explained.html)'),
    ('one transformer block, the last 200 words of a review', '87.45', '[Keras example](https://keras.io/examples/nlp/text_classification_with_transformer/)'),
    ('NB-SVM of words and word pairs', '91.22', '[Wang and Manning 2012](https://aclanthology.org/P12-2018/), table 2'),
    ("LSTM pretrained on the task's own text", '92.61', '[Miyato et al. 2017](https://arxiv.org/abs/1605.07725), table 2'),
    ('AWD_LSTM pretrained on WikiText-103', '94.3', "[fastai's text tutorial](https://docs.fast.ai/tutorial.text.html)"),
]

# Questions

def imdb():
    pre,lab,big = best_text('imdb','pretrained'),rows('imdb', candidate='txf', split='test', asked=8.0),one('imdb', candidate='bigram')
    lines = [
        ('`transformer_classifier_learner` with the encoder of `transformer_lm_learner`', f"**{mean(pre, 'accuracy'):.1f}** ({each(pre, 'accuracy')})",
         f"{pre[0]['text_minutes']:.0f} core-minutes of reading without labels, then {span(pre, 'minutes')} min", '`imdb.py --only pretrained --threads 1`'),
        ("`transformer_classifier_learner(dls, 'reviews')`, labels only", f"**{mean(lab, 'accuracy'):.1f}** ({each(lab, 'accuracy')})", f"{lab[0]['asked']:.0f} min", '`imdb.py --only txf --threads 1`'),
        ('words and word pairs, tf-idf, logistic regression (scikit-learn 1.9.1)', f"{big['accuracy']:.1f}", f"{60*big['minutes']:.0f} s", '`imdb.py --only bigram`')]
    pub = table(['published, not run here', 'accuracy', 'source'], PUBLISHED_IMDB)
    heavy = {k:one('imdb', candidate=k) for k in ('workshop','awd')}
    note = ("Two peers are **no contest** here and stand in no table: the workshop's transformer and AWD_LSTM without its pretraining got the same eight minutes, in which they "
            f"saw {heavy['workshop']['epochs']:.2f} and {heavy['awd']['epochs']:.2f} epochs. Their rows are kept.\n\n")
    return question('imdb', 'How many IMDB reviews are classified right?',
        'Full IMDB: 25,000 reviews to train on, 25,000 to test, scored once at the end of each run. Everything was chosen on reviews held out of the training set. '
        'In brackets each seed; the time is that of training on one thread of a two-core machine. A linear model of word pairs is ahead of a transformer that learns from the labels alone, and behind one that has read the reviews first.',
        ('imdb', 'accuracy on the test reviews, ours in blue, published figures hatched'), table(['model', 'accuracy', 'training', 'command'], lines),
        ['imdb.py --only pretrained txf bigram --threads 1'], [*pre, *lab, big], 'imdb', pub + '\n' + note)

def few():
    get = {k:rows('transfer', candidate=k, split='test') for k in ('language','student','counted','labels','bigram')}
    what = dict(language='the encoder of a language model that has read 75,000 reviews (`pretrained=`)', student='self-training: four classifiers label 71,500 reviews for a fifth (`pseudo_labels`)',
                counted='embeddings from counting in 22,500 reviews (`count_vectors`)', labels='labels only', bigram='`baseline`: words and word pairs with weights (scikit-learn 1.9.1)')
    def cost(k):
        rs = get[k]
        text = f"{mean(rs, 'text_minutes'):.1f} for text, " if 'text_minutes' in rs[0] else ''
        return f"{text}{mean(rs, 'minutes'):.1f} for labels"
    lines = [(what[k], f"**{mean(rs, 'accuracy'):.1f}**" + (f" ({each(rs, 'accuracy')})" if len(rs) > 1 else ''), cost(k), f'`transfer.py --only {k} --threads 1`') for k,rs in get.items()]
    return question('few', 'What is text without labels worth, with 1,000 labels?',
        'The same 1,000 labelled IMDB reviews for all; 5,000 reviews of the test set, scored once at the end of each run. Minutes are those of one core.',
        ('few', 'accuracy against minutes of one core'), table(['from', 'accuracy', 'core-minutes', 'command'], lines),
        ['transfer.py --only language student counted labels bigram --threads 1'], [r for rs in get.values() for r in rs], 'transfer')

def words():
    a,b = (one('lm_sample', candidate=k) for k in ('txf','workshop'))
    lines = [(n, f"{r['loss']:.2f}", f"{r['perplexity']:.0f}", f"{r['params']/1e6:.1f} million", f"`lm_sample.py --epochs 12 --only {r['candidate']}`") for n,r in
             (('`transformer_lm_learner`: width 128, 2 layers, dropout 0.3', a), ("the fastai workshop's transformer: width 256, 8 wide heads, 3 layers, batches of 64", b))]
    return question('words', 'How well does a small language model of words learn?',
        'IMDB_SAMPLE: 800 reviews to train on, 200 to validate, 12 epochs for each, the same vocabulary, sequences of 256 tokens and validation batches, one seed. The times are not comparable and not shown. '
        'Published for the second: 5.247 ([Londögård 2021](https://blog.londogard.com/posts/2021-02-18-transformers-explained/transformers-explained.html)).',
        ('words', 'validation loss of two language models'), table(['model', 'valid loss', 'perplexity', 'parameters', 'command'], lines), ['lm_sample.py --epochs 12'], [a, b], 'lm_sample')

def shakespeare():
    a,b = (rows('shakespeare', candidate=k) for k in ('txf','plain'))
    took = statistics.median(x['seconds']/y['seconds'] for x,y in zip(a, b))
    lines = [('`transformer_lm_learner`, sinusoidal positions, learning rate 4e-3', f"**{mean(a, 'loss'):.2f}** ({each(a, 'loss', '.2f')})", f'{took:.2f}'),
             ("the same size as nanoGPT arranges it, with nanoGPT's schedule, in a plain loop", f"{mean(b, 'loss'):.2f} ({each(b, 'loss', '.2f')})", '1')]
    return question('shakespeare', "And of characters, at nanoGPT's setting for a CPU?",
        'tinyshakespeare: 4 layers, 4 heads, width 128, 64 characters, batches of 12, 2,000 steps; loss over the whole last tenth of the text, three seeds, in turns on one thread. '
        'Published for nanoGPT: 1.88 ([its README](https://github.com/karpathy/nanoGPT)).',
        ('shakespeare', 'validation loss for each seed'), table(['model', 'valid loss', 'time'], lines), ['shakespeare.py --threads 1'], [*a, *b], 'shakespeare')

def translator(split):
    "Our row with the script's own recipe: the other one has `scale_emb=False`."
    return next(r for r in rows('multi30k', candidate='txf', split=split) if 'scale_emb' not in r['recipe']['model'])

def translation():
    plain,valid = ([translator(s), one('multi30k', candidate='torch', split=s)] for s in ('test','valid'))
    names = '`transformer_seq2seq_learner`','`nn.Transformer` of torch 2.13 in the same learner: pre-norm, sinusoids, shared embeddings'
    lines = [(n, f"**{t['bleu']:.1f}** ({t['greedy']:.1f})" if i == 0 else f"{t['bleu']:.1f} ({t['greedy']:.1f})", f"{v['bleu']:.1f} ({v['greedy']:.1f})", f"`multi30k.py --only {t['candidate']} --threads 1`") for i,(n,t,v) in enumerate(zip(names, plain, valid))]
    return question('translation', 'How well does it translate?',
        'Multi30k, German to English, 29,000 captions to train on, 1,000 of test_2016_flickr translated once; everything was chosen on the validation pairs. sacrebleu on plain, cased text, beam of five (greedy in brackets). '
        'Three blocks of width 192 on either side, 6,000 byte pairs, 3.4 million parameters, 14 epochs, one seed. Other jobs ran beside, so no times are given.',
        ('translation', 'BLEU with a beam of five'), table(['model', 'test', 'validation pairs', 'command'], lines), ['multi30k.py --only txf torch --threads 1', 'multi30k.py --only txf torch --threads 1 --valid'], [*plain, *valid], 'multi30k')

STEPS = dict(ours='`TransformerLM`', chunked='the same without logits (`ChunkedLoss`)', ours_compiled='`TransformerLM` with `compile=True`', nano="nanoGPT's arrangement, written out in `common.py`",
             x='x-transformers 2.31.10', hf='GPT-2 of Hugging Face transformers 5.23.0', torch='`nn.TransformerEncoder` of torch 2.13', workshop="the fastai workshop's model")

def step():
    rs = {k:one('train', candidate=k) for k in STEPS}
    lines = [(n, f"{rs[k]['ratio']:.2f}", f"{rs[k]['mb']['2048']:,}" if 'mb' in rs[k] else '') for k,n in STEPS.items()]
    peers = [f"{n} {one('train', candidate=f'{k}_compiled')['ratio_compiled']:.2f}" for k,n in (('nano',"nanoGPT's arrangement"), ('hf','Hugging Face'), ('x','x-transformers'))]
    return question('step', 'How long does a training step take, and how much memory?',
        'A step of 8 × 256 tokens: 4 layers of width 256, a vocabulary of 10,000, fp32, fused AdamW, no dropout; two threads, the candidates in turns, the median of the ratios of nine rounds. MB: the peak of a step with 2,048 tokens, above the imports. '
        f"Against our compiled model, the peers compiled whole take {', '.join(peers)} times as long. With rotary positions the compiled step is slower here than the plain one.",
        ('step', 'time of a training step, times that of TransformerLM'), table(['model', 'time', 'MB'], lines), ['train.py'], list(rs.values()), 'train')

GENERATORS = dict(ours='`generate`, learned positions', rotary='`generate`, rotary positions', compiled='`generate(compile=True)`, learned positions', hf='GPT-2 of Hugging Face transformers 5.23.0', x='x-transformers 2.31.10')

def generation():
    a,b = ({k:one('generate', candidate=k, bs=n) for k in GENERATORS} for n in (1, 32))
    lines = [(n, f"{a[k]['tokens_per_s']:,}", f"{a[k]['ratio']:.1f}", f"{b[k]['tokens_per_s']:,}", f"{b[k]['ratio']:.1f}") for k,n in GENERATORS.items()]
    first = [x['compiled']['first'] for x in (a, b)]
    return question('generation', 'How many tokens a second does it write?',
        '256 tokens after a prompt of 16, sampled: 4 layers of width 256, a vocabulary of 10,000, two threads, both peers with their caches. '
        f'The first compiled call takes {min(first):.0f} s.',
        ('generation', 'tokens a second, one text'), table(['tokens a second', 'one text', 'times Hugging Face', '32 texts', 'times Hugging Face'], lines), ['generate.py --threads 2'], [*a.values(), *b.values()], 'generate')

TOKENIZERS = dict(fastai="fastai's default (2.8.12, spaCy 3.8.18), two processes", spacy_plain='`FastSpacyTokenizer` in the same pipeline: the same tokens', spacy='`FastSpacyTokenizer` in `LMDataLoaders`, one process', bpe_trained='`BPETokenizer`, trained before, one process', bpe='`BPETokenizer`, training included')

def tokenizing():
    rs = {k:rows('tokenizing', candidate=k, n=None) for k in TOKENIZERS}
    base = {r['seed']:r['texts_per_s'] for r in rs['fastai']}
    lines = [(n, each(rs[k], 'texts_per_s', ',.0f'), ', '.join(f"{r['texts_per_s']/base[r['seed']]:.1f}" for r in sorted(rs[k], key=lambda r: r['seed']))) for k,n in TOKENIZERS.items()]
    return question('tokenizing', 'How long does it take from text to token ids?',
        "IMDB's 25,000 training reviews, two cores, two rounds, each candidate in a fresh process.",
        ('tokenizing', 'texts a second'), table(['from text to ids', 'texts a second', "times fastai's rate"], lines), ['tokenizing.py --seeds 0 1'], [r for o in rs.values() for r in o], 'tokenizing')

LOADERS = dict(lm="fastai's `LMDataLoader` (2.8.12)", flat='`FlatLMDataLoader`', random="`FlatLMDataLoader(windows='random')`")

def batches():
    rs = {k:rows('tokenizing', candidate=f'{k}_100M') for k in LOADERS}
    lines = [(n, each(rs[k], 'batch_ms'), each(rs[k], 'start_s', '.2f')) for k,n in LOADERS.items()]
    return question('batches', 'And from 100 million ids to batches?', 'Batches of 64 × 72 tokens, shuffled, from synthetic ids in texts of 300; two rounds.',
        ('batches', 'milliseconds a batch'), table(['loader', 'ms a batch', 'seconds to the first'], lines), ['tokenizing.py'], [r for o in rs.values() for r in o], 'tokenizing')

EPOCHS = dict(ours='`TransformerClassifier`', compiled='`TransformerClassifier`, `compile=True`', torch='`nn.TransformerEncoder` of torch 2.13')

def epoch():
    rs = {k:one('epoch', candidate=k) for k in EPOCHS}
    lines = [(n, f"{rs[k]['seconds']:.1f}", f"{rs[k]['ratio']:.2f}", f"{rs[k]['tokens']:,}") for k,n in EPOCHS.items()]
    return question('epoch', "What does an epoch of classification cost on fastai's padded batches?",
        '320 IMDB reviews, the first 512 tokens, in batches of 32: 4 layers of width 256; medians of five passes in which the candidates take turns batch by batch. torch reads fewer real tokens, as padding takes their places.',
        ('epoch', 'real tokens a second'), table(['model', 'seconds', "times torch's rate of tokens", 'real tokens read'], lines), ['epoch.py'], list(rs.values()), 'epoch')

SCALES = dict(full='all logits', chunked='`ChunkedLoss`', twice='`checkpoint=True`', both='both')

def scale():
    rs = {k:one('scale', candidate=k) for k in SCALES}
    lines = [(n, f"{rs[k]['mb']:,}", f"{rs[k]['mb']/rs['full']['mb']:.2f}", f"{rs[k]['seconds']:.2f}") for k,n in SCALES.items()]
    return question('scale', 'What does a large vocabulary cost?', 'A training step of 8 × 256 tokens with a vocabulary of 60,000: 4 layers of width 256, AdamW, a fresh process each; no peer, a comparison of our own options.',
        ('scale', 'MB at the peak'), table(['step', 'MB', 'of the first', 'processor seconds'], lines), ['scale.py'], list(rs.values()), 'scale')

QUESTIONS = [imdb, few, words, shakespeare, translation, step, generation, tokenizing, batches, epoch, scale]

# Pictures

def bars(ax, values, ours, unit, fmt='{:,.0f}', hatched=()):
    "Horizontal bars in the order given, each with its number."
    names = list(values)[::-1]
    for i,k in enumerate(names):
        ax.barh(i, values[k], color=OURS if k in ours else PEER, hatch='///' if k in hatched else None, edgecolor='white', height=0.7)
        ax.text(values[k], i, ' ' + fmt.format(values[k]), va='center', fontsize=9)
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.set_xlabel(unit, fontsize=9)
    ax.spines[['top','right']].set_visible(False)

def draw_imdb(ax):
    v = {'read first, then labels':mean(best_text('imdb','pretrained'), 'accuracy'), 'linear, word pairs':one('imdb', candidate='bigram')['accuracy'],
         'labels only':mean(rows('imdb', candidate='txf', split='test', asked=8.0), 'accuracy')}
    short = ["the workshop's transformer","Keras example",'NB-SVM','LSTM, read first','AWD_LSTM, Wikipedia']
    pub = {n:float(f) for n,(_,f,_) in zip(short, PUBLISHED_IMDB)}
    bars(ax, dict(sorted({**v, **pub}.items(), key=lambda o: -o[1])), ('read first, then labels','labels only'), '% of the test reviews right (50: guessing)', '{:.1f}', pub)
    ax.set_xlim(50, 100)

def draw_few(ax):
    names = dict(language='language model', student='self-training', counted='counted', labels='labels only', bigram='linear baseline')
    for k,n in names.items():
        rs = rows('transfer', candidate=k, split='test')
        x = statistics.fmean(r['minutes'] + r.get('text_minutes', 0) for r in rs)
        ax.plot([x]*len(rs), [r['accuracy'] for r in rs], 'o', c=PEER if k == 'bigram' else OURS)
        ax.annotate(n, (x, mean(rs, 'accuracy')), (8, 0), textcoords='offset points', fontsize=9, va='center')
    ax.set(xscale='log', xlabel='minutes of one core', ylabel='% right', xlim=(0.03, 600))
    ax.spines[['top','right']].set_visible(False)

def draw_words(ax): bars(ax, {'fastai_txf':one('lm_sample', candidate='txf')['loss'], "the workshop's":one('lm_sample', candidate='workshop')['loss']}, ('fastai_txf',), 'validation loss (less is better)', '{:.2f}')

def draw_shakespeare(ax):
    for i,(k,c) in enumerate((('txf',OURS), ('plain',PEER))): ax.plot([r['loss'] for r in rows('shakespeare', candidate=k)], [1-i]*3, 'o', c=c, ms=8)
    ax.axvline(1.88, c='0.5', lw=1, ls='--'); ax.text(1.88, 1.45, ' published', fontsize=9, va='center')
    ax.set_yticks([1,0], ['fastai_txf', "nanoGPT's arrangement"]); ax.set(xlabel='validation loss (less is better)', ylim=(-0.6, 1.7))
    ax.spines[['top','right']].set_visible(False)

def draw_translation(ax): bars(ax, {'fastai_txf':translator('test')['bleu'], 'nn.Transformer':one('multi30k', candidate='torch', split='test')['bleu']}, ('fastai_txf',), 'BLEU', '{:.1f}')

SHORT = dict(ours='TransformerLM', chunked='without logits', ours_compiled='compiled', nano="nanoGPT's arrangement", x='x-transformers', hf='Hugging Face', torch='nn.TransformerEncoder', workshop="the workshop's")
def draw_step(ax): bars(ax, {SHORT[k]:one('train', candidate=k)['ratio'] for k in STEPS}, ('TransformerLM','without logits','compiled'), "times TransformerLM's time (less is better)", '{:.2f}')

def draw_generation(ax):
    names = dict(ours='learned positions', rotary='rotary positions', compiled='compiled', hf='Hugging Face', x='x-transformers')
    bars(ax, {n:one('generate', candidate=k, bs=1)['tokens_per_s'] for k,n in names.items()}, ('learned positions','rotary positions','compiled'), 'tokens a second, one text')

def draw_tokenizing(ax):
    names = dict(fastai='fastai', spacy_plain="fast spaCy, fastai's pipeline", spacy='fast spaCy, LMDataLoaders', bpe='byte pairs, with training', bpe_trained='byte pairs')
    bars(ax, {n:mean(rows('tokenizing', candidate=k, n=None), 'texts_per_s') for k,n in names.items()}, [n for n in names.values() if n != 'fastai'], 'texts a second')

def draw_batches(ax): bars(ax, {n:mean(rows('tokenizing', candidate=f'{k}_100M'), 'batch_ms') for k,n in dict(lm='fastai', flat='FlatLMDataLoader', random='random windows').items()}, ('FlatLMDataLoader','random windows'), 'ms a batch (less is better)', '{:.1f}')
def draw_epoch(ax): bars(ax, {n:one('epoch', candidate=k)['tokens']/one('epoch', candidate=k)['seconds'] for k,n in dict(ours='TransformerClassifier', compiled='compiled', torch='nn.TransformerEncoder').items()}, ('TransformerClassifier','compiled'), 'real tokens a second')
def draw_scale(ax): bars(ax, {n:one('scale', candidate=k)['mb'] for k,n in dict(full='all logits', chunked='ChunkedLoss', twice='checkpoint', both='both').items()}, ('ChunkedLoss','checkpoint','both'), 'MB at the peak (less is better)')

def draw():
    "A picture for each question."
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    PICTURES.mkdir(exist_ok=True)
    for f in QUESTIONS:
        fig,ax = plt.subplots(figsize=(7, 2.8), facecolor='white')
        globals()[f'draw_{f.__name__}'](ax)
        fig.tight_layout()
        fig.savefig(PICTURES/f'{f.__name__}.png', dpi=110, metadata={'Software':None})
        plt.close(fig)

# The README

def summary():
    "The README's table of results: what, ours, beside whom, command."
    pre,few,student = best_text('imdb','pretrained'),rows('transfer', candidate='language', split='test'),rows('transfer', candidate='student', split='test')
    t,g,tok = (lambda k: one('train', candidate=k)),(lambda k, n: one('generate', candidate=k, bs=n)),(lambda k: rows('tokenizing', candidate=k, n=None))
    acc = lambda rs: f"{mean(rs, 'accuracy'):.1f} %"
    lines = [
        ('IMDB, 25,000 labels and the unlabelled reviews', acc(pre), f"{one('imdb', candidate='bigram')['accuracy']:.1f} %, linear model of word pairs", 'imdb.py'),
        ('IMDB, 1,000 labels and the unlabelled reviews', acc(few), f"{acc(rows('transfer', candidate='bigram', split='test'))}, linear model", 'transfer.py'),
        ('Multi30k, German to English, BLEU', f"{translator('test')['bleu']:.1f}", f"{one('multi30k', candidate='torch', split='test')['bleu']:.1f}, `nn.Transformer`", 'multi30k.py'),
        ("characters at nanoGPT's CPU setting, loss", f"{mean(rows('shakespeare', candidate='txf'), 'loss'):.2f}", f"{mean(rows('shakespeare', candidate='plain'), 'loss'):.2f}, nanoGPT's arrangement", 'shakespeare.py'),
        ('a training step without logits, time', f"{t('chunked')['ratio']/t('nano')['ratio']:.2f}", "1, nanoGPT's arrangement", 'train.py'),
        ('tokens a second, one text', f"{g('ours', 1)['tokens_per_s']:,}", f"{g('hf', 1)['tokens_per_s']:,}, Hugging Face GPT-2", 'generate.py'),
        ('the same, 32 texts', f"{g('ours', 32)['tokens_per_s']:,}", f"{g('hf', 32)['tokens_per_s']:,}, Hugging Face GPT-2", 'generate.py'),
        ("reviews tokenized a second, fastai's tokens", f"{mean(tok('spacy_plain'), 'texts_per_s'):.0f}", f"{mean(tok('fastai'), 'texts_per_s'):.0f}, fastai", 'tokenizing.py')]
    return table(['measured on two CPU cores', 'fastai_txf', 'beside', 'command'], [(*l[:3], f'`benchmarks/{l[3]}`') for l in lines])

def figures():
    "Every figure that the README's prose may name."
    def acc(name, k, **kw): return f"{mean(rows(name, candidate=k, split='test', **kw), 'accuracy'):.1f}"
    g = [one('generate', candidate='ours', bs=n) for n in (1, 32)]
    return {'IMDB, read first':f"{mean(best_text('imdb','pretrained'), 'accuracy'):.1f}", 'IMDB, labels only':acc('imdb','txf', asked=8.0), 'IMDB, linear':acc('imdb','bigram'),
            'few labels, read first':acc('transfer','language'), 'few labels only':acc('transfer','labels'), 'few labels, linear':acc('transfer','bigram'),
            'core-minutes of reading':f"{rows('transfer', candidate='language', split='test')[0]['text_minutes']:.0f}",
            'tokens a second':f"{g[0]['tokens_per_s']:,}", 'times Hugging Face':f"{g[0]['ratio']:.1f}", 'times Hugging Face, 32 texts':f"{g[1]['ratio']:.1f}",
            'step without logits':f"{one('train', candidate='chunked')['ratio']:.2f}", 'published AWD_LSTM':PUBLISHED_IMDB[-1][1]}

def readme():
    "README.md with its table written anew."
    return re.sub(r'(<!-- results -->\n).*?(<!-- /results -->)', lambda m: m[1] + summary() + m[2], README.read_text(encoding='utf-8'), flags=re.S)

# The page

HEAD = """# Results

What was measured, beside whom, and how to measure it again. A question has a picture, a table and its command; below it stand machine, versions and date. The figures come from the rows under `results`, a line of JSON for each run; `benchmarks/page.py` writes this page, and a test compares the two. Nothing published elsewhere was run here unless a command says so.
"""

def kept():
    "What others have written between the marks, by name."
    return dict(re.findall(r'<!-- more: (\w+) -->\n(.*?)<!-- /more -->', PAGE.read_text(encoding='utf-8'), re.S)) if PAGE.exists() else {}

def page():
    "benchmarks/README.md."
    more = kept()
    marked = lambda k: f"<!-- more: {k} -->\n{more.get(k, '')}<!-- /more -->\n"
    parts = [HEAD, *[f() for f in QUESTIONS[:2]], marked('sets'), *[f() for f in QUESTIONS[2:]], marked('serving'), (HERE/'running.md').read_text(encoding='utf-8')]
    return '\n'.join(parts)

def main():
    new = {PAGE:page(), README:readme()}
    old = [o.relative_to(HERE.parent) for o,txt in new.items() if o.read_text(encoding='utf-8') != txt]
    if '--check' in sys.argv: raise SystemExit(f'not up to date: {", ".join(map(str, old))}: run benchmarks/page.py' if old else 0)
    for o,txt in new.items(): o.write_text(txt, encoding='utf-8')
    draw()

if __name__ == '__main__': main()
