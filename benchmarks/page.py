"""The results page, `benchmarks/README.md`, from `page.md` and the rows under `results`; a picture for each of its questions
under `results/pictures`; the table of the README.

`python benchmarks/page.py` writes them; with `--check` it only names what is not up to date. `page.md` has the words and a
`{name}` where a function of this file puts its picture, table and commands."""
import json, re, statistics, sys
from pathlib import Path

HERE = Path(__file__).parent
README,PAGE,TEMPLATE = HERE.parent/'README.md', HERE/'README.md', HERE/'page.md'
PICTURES = HERE/'results'/'pictures'
OURS,PEER = '#2166ac','#9aa0a6'
PY = '.venv/bin/python benchmarks/'

# Rows

def rows(name, **want):
    "The rows of `results/{name}.jsonl` that have these values."
    lines = (HERE/'results'/f'{name}.jsonl').read_text(encoding='utf-8').splitlines()
    return [r for r in map(json.loads, lines) if all(r.get(k)==v for k,v in want.items())]

def on_short(candidate):
    "The rows of a candidate on the sets of short texts."
    return [r for r in rows('sets', candidate=candidate) if r['set'] in SETS]

def one(name, **want):
    "The only row with these values."
    got = rows(name, **want)
    if len(got) != 1: raise ValueError(f'results/{name}.jsonl has {len(got)} rows with {want}')
    return got[0]

def longest_read(name, candidate):
    "The rows of the test set of a candidate that was pretrained, those of its longest reading."
    rs = rows(name, candidate=candidate, split='test')
    most = max(r['text_minutes'] for r in rs)
    return one_recipe([r for r in rs if r['text_minutes']==most])

def teachers(n):
    "The rows of what has read all reviews, vectors of reviews among it, with `n` labels and without students."
    return [r for r in rows('unlabelled', labels=n) if 'accuracy' not in r and 'vectors' in r['recipe']]

def taught(n, which='accuracy'):
    "The accuracy of these, together or of one kind (`which`), in per cent."
    return f"{mean(teachers(n), f'{which}, taught'):.1f}"

def in_words(n): return dict(enumerate('no one two three four five six seven eight nine'.split())).get(n, n)

def seeds(rs):
    "How many runs a figure is the mean of."
    return f"{in_words(len(rs))} seed{'s'*(len(rs) > 1)}"

def alone(n, former=False):
    "The rows of the transformer that reads forwards by itself, in less time, and learns from `n` labels; or those of its `former` recipe."
    rs = [r for r in rows('unlabelled', labels=n) if 'text_steps' in r and r['recipe']['shape'].get('bigrams')]
    return [r for r in rs if (r['recipe']['text']['minutes'] > rs[-1]['recipe']['text']['minutes']) == former]

def readings(rs):
    "How long the language models of these rows read, each once."
    return sorted({r['text_minutes'] for r in rs})

def students(n, each=1):
    "The rows with `n` labels and as many students of `each` transformer."
    return [r for r in rows('unlabelled', labels=n) if 'accuracy' in r and r['recipe'].get('students', 1) == each]

def one_recipe(rs):
    "The rows, if they are of one recipe."
    recipes = {json.dumps(r['recipe']) for r in rs}
    if len(recipes) != 1: raise ValueError(f"{len(recipes)} recipes of {rs[0]['candidate'] if rs else 'a candidate'}: a figure is the mean of one; delete the rows of the others")
    return rs

def labels_only(): return one_recipe(rows('imdb', candidate='txf', split='test', asked=None))
def few_labels(candidate): return one_recipe(rows('transfer', candidate=candidate, split='test'))

def translators(candidate, split):
    "The rows of a candidate's own recipe, one for each seed: another of ours has `scale_emb=False`, and on the validation pairs `muon` was tried with fewer epochs, too."
    rs = [r for r in rows('multi30k', candidate=candidate, split=split) if 'scale_emb' not in r['recipe']['model']]
    most = max(r['recipe']['epochs'] for r in rs)
    return [r for r in rs if r['recipe']['epochs'] == most]

def mean(rs, key): return statistics.fmean(r[key] for r in rs)
def by_seed(rs): return sorted(rs, key=lambda r: r['seed'] or 0)
def each(rs, key, f='.1f'): return ', '.join(format(r[key], f) for r in by_seed(rs))
def accuracy(rs): return f"**{mean(rs, 'accuracy'):.1f}**" + (f" ({each(rs, 'accuracy')})" if len(rs) > 1 else '')

# Writing

def table(head, lines):
    "A markdown table."
    return '\n'.join('| ' + ' | '.join(map(str, l)) + ' |' for l in [head, ['---']*len(head), *lines]) + '\n'

def measured(rs):
    "With what the rows were measured, and when; the versions without those that do not matter here."
    def short(v): return re.sub(r', (?:scikit-learn|spacy) [^,\s]+', '', v)
    machines = dict.fromkeys(f"{r['machine']} ({short(r['versions'])})" for r in rs)
    days = sorted({r['date'] for r in rs})
    commits = dict.fromkeys(r['commit'] for r in rs)
    when = ' and '.join(dict.fromkeys((days[0], days[-1])))
    return f"Measured on {'; '.join(machines)}; {when}; commits {', '.join(commits)}."

def block(alt, picture, tab, commands, rs, name, more=''):
    "What follows a question's text: its picture, its table, how to ask it again."
    cmds = '\n'.join(f'{PY}{c}' for c in commands)
    return (f'![{alt}](results/pictures/{picture}.png)\n\n{tab}\n{more}'
            f'```sh\n{cmds}\n```\n\n{measured(rs)} [All rows](results/{name}.md).')

# Questions

WORKSHOP = 'https://blog.londogard.com/posts/2021-02-18-transformers-explained/transformers-explained.html'
PUBLISHED_IMDB = [
    ("the fastai workshop's transformer (k 256, 8 wide heads, depth 4, 256 tokens, 6 epochs)", '78.0',
     f'[Londögård 2021]({WORKSHOP})'),
    ('one transformer block, the last 200 words of a review', '87.45',
     '[Keras example](https://keras.io/examples/nlp/text_classification_with_transformer/)'),
    ('NB-SVM of words and word pairs', '91.22',
     '[Wang and Manning 2012](https://aclanthology.org/P12-2018/), table 3'),
    ("LSTM pretrained on the task's own text", '92.61',
     '[Miyato et al. 2017](https://arxiv.org/abs/1605.07725), table 2'),
    ('AWD_LSTM pretrained on WikiText-103', '94.3',
     "[fastai's text tutorial](https://docs.fast.ai/tutorial.text.html)"),
]

NO_CONTEST = """Two peers are **no contest** here and stand in no table: the workshop's transformer and AWD_LSTM without its \
pretraining got eight minutes, in which they saw {workshop:.2f} and {awd:.2f} epochs. Their rows are kept.

"""

def imdb():
    pre,lab,big = longest_read('imdb','pretrained'),labels_only(),one('imdb', candidate='bigram')
    lo,hi = (f(r['minutes'] for r in pre) for f in (min, max))
    reading = f"{pre[0]['text_minutes']:.0f} core-minutes of reading without labels, then {lo:.0f} to {hi:.0f} min"
    both = teachers(25_000)
    took = f"{mean(both, 'text_minutes'):.0f} core-minutes of reading, then {mean(both, 'minutes, taught'):.0f}"
    fast,former = alone(25_000), alone(25_000, former=True)
    def read_then(rs): return f"{' and '.join(f'{o:.0f}' for o in readings(rs))} core-minutes of reading without labels, then {mean(rs, 'minutes, taught'):.0f}"
    lines = [
        ('two classifiers that have read all reviews, one of them backwards, counted words, and vectors of reviews (`TextVectors`), weighed on 1,250 held-out reviews; three seeds, which read once', f'**{taught(25_000)}**', took,
         '`unlabelled.py --labels 25000 --seeds 0 1 2 --students 0 --threads 1`'),
        (f"one classifier, with pairs of words and normalised queries and keys (`bigrams`, `qk_norm`) in its encoder; {seeds(fast)}",
         f"{mean(fast, 'forwards, taught'):.1f}", read_then(fast), '`unlabelled.py --alone --faster --reader 1 --labels 25000 --threads 1`'),
        (f"the same with three more minutes for reading, on another processor; {seeds(former)}, {seeds(readings(former)).replace('seeds', 'readings')}",
         f"{mean(former, 'forwards, taught'):.1f}", read_then(former), '`FASTER` with 47 minutes'),
        ('`transformer_classifier_learner` with the encoder of `transformer_lm_learner`', accuracy(pre), reading,
         '`imdb.py --only pretrained --threads 1`'),
        ("`transformer_classifier_learner(dls, 'reviews')`, labels only", accuracy(lab), f"{lab[0]['epochs']:.0f} epochs, {mean(lab, 'core_minutes'):.0f} core-minutes",
         '`imdb.py --only txf --threads 1`'),
        ('words and word pairs, tf-idf, logistic regression (scikit-learn 1.9.1)', f"{big['accuracy']:.1f}",
         f"{60*big['minutes']:.0f} s", '`imdb.py --only bigram`')]
    heavy = NO_CONTEST.format(**{k:one('imdb', candidate=k, split='test', asked=8)['epochs'] for k in ('workshop','awd')})
    published = table(['published, not run here','accuracy','source'], PUBLISHED_IMDB)
    return block('accuracy on the test reviews, ours in blue, published figures hatched', 'imdb',
                 table(['model','accuracy','training','command'], lines),
                 ['imdb.py --only pretrained txf bigram --threads 1', 'unlabelled.py --labels 25000 --seeds 0 1 2 --students 0 --threads 1', 'unlabelled.py --alone --faster --reader 1 --labels 25000 --threads 1'], [*both, *fast, *former, *pre, *lab, big], 'imdb', f'{published}\n{heavy}')

FEW = dict(
    language='the encoder of a language model that has read 75,000 reviews (`pretrained=`)',
    student='self-training: four classifiers label 71,500 reviews for a fifth (`pseudo_labels`)',
    counted='embeddings from counting in 22,500 reviews (`count_vectors`)',
    labels='labels only: a transformer',
    bigram='labels only: `baseline`, words and word pairs with weights (scikit-learn 1.9.1)')

def core_minutes(rs):
    text = f"{mean(rs, 'text_minutes'):.1f} for text, " if 'text_minutes' in rs[0] else ''
    return f"{text}{mean(rs, 'minutes'):.1f} for labels"

def few_row(what, labels, rs, took, command, key='accuracy'):
    "A row of the table of few labels, as a dictionary."
    return dict(what=what, labels=labels, rows=rs, acc=mean(rs, key), each=f' ({each(rs, key)})' if len(rs) > 1 else '',
                tested=rs[0].get('scored', 25_000), took=took, command=f'`{command} --threads 1`')

def few_read(n):
    "With `n` labels: vectors of all reviews, counted words, and the mean of all kinds."
    rs,command = teachers(n),f'unlabelled.py --labels {n} --seeds 0 1 2 --students 0'
    def row(what, kind, text):
        took = statistics.fmean(r['minutes of each, taught'].get(kind, r['minutes, taught']) for r in rs)
        return few_row(what, n, rs, f'{text:.0f} for text, {took:.0f} for labels' if text else f'{took:.1f} for labels', command, f'{kind}, taught')
    yield row('vectors of reviews, learnt from 75,000 (`TextVectors`), logistic regression', 'vectors', statistics.fmean(r['text_minutes_each']['vectors'] for r in rs))
    yield row('the mean of such vectors, counted words, and two transformers that have read all reviews', 'accuracy', mean(rs, 'text_minutes'))
    yield row('labels only: linear model of counted words, pairs and triples', 'counted', 0)

FEW_SETS = dict(best='`best_classifier(df, unlabelled=texts, minutes=10)`, 20,000 reviews without labels',
                default='labels only: `transformer_classifier_learner(dls).fit_minutes(1.5)`, with counted words',
                bigrams='labels only: linear model of words and pairs, NB-weighted')

def few_sets(n):
    "With `n` labels: the calls of `sets.py`."
    for k,what in FEW_SETS.items():
        rs = rows('sets', candidate=k, set=f'imdb{n}')
        yield few_row(what, n, rs, f"{mean(rs, 'core-minutes'):.1f}, predictions included", f'sets.py --data FOLDER --only {k} --sets imdb{n}')

def few_students():
    "Two classifiers and counted words that label other reviews for students."
    teach = 'two classifiers that have read all reviews, one of them backwards, and counted words label 40,000 reviews for'
    for n,whom,options in ((1, 'three like them', ''), (2, 'five, two of each transformer', ' --students 2')):
        rs = students(1000, each=n)
        took = f"{mean(rs, 'text_minutes'):.0f} for text, {mean(rs, 'minutes, taught')+mean(rs, 'minutes'):.0f} for labels"
        yield few_row(f'{teach} {whom}', 1000, rs, took, f'unlabelled.py --labels 1000{options}')

def few():
    found = [few_row(what, 1000, few_labels(k), core_minutes(few_labels(k)), f'transfer.py --only {k}') for k,what in FEW.items()]
    found += [*few_students(), *(o for n in (1000, 100) for f in (few_read, few_sets) for o in f(n))]
    found.sort(key=lambda r: (-r['labels'], -r['acc']))
    best = {n:max(r['acc'] for r in found if r['labels']==n) for n in (1000, 100)}
    def share(r): return f"**{r['acc']:.1f}**" if r['acc']==best[r['labels']] else f"{r['acc']:.1f}"
    lines = [(r['what'], f"{r['labels']:,}", share(r) + r['each'], f"{r['tested']:,}", r['took'], r['command']) for r in found]
    return block('accuracy against minutes of one core', 'few', table(['from','labels','accuracy','test reviews','core-minutes','command'], lines),
                 [f"transfer.py --only {' '.join(FEW)} --threads 1", 'unlabelled.py --labels 1000 --threads 1', 'unlabelled.py --labels 1000 --students 2 --threads 1', 'unlabelled.py --labels 1000 100 --seeds 0 1 2 --students 0 --threads 1', 'sets.py --data FOLDER --only bigrams default best --sets imdb1000 imdb100 --threads 1'], [o for r in found for o in r['rows']], 'transfer')

SMALL = dict(
    bigrams='linear: NB-weighted words and pairs (scikit-learn 1.9.1)',
    words='the wide path alone, of words and pairs', letters='the same with runs of four letters',
    pieces='the wide path alone, of byte pairs, their words and pairs', both='the same with runs of four letters', runs='the same with runs of three to five letters', rare='these weighted by rarity (tf–idf), texts as vectors of length 1',
    default='`transformer_classifier_learner(dls).fit_minutes(1.5)`', known='the same of `TransformerDataLoaders`, which keep rare words',
    deep='the transformer of the plain call alone, in the same processor time', awd='`text_classifier_learner(dls, AWD_LSTM, pretrained=False)`, likewise', best='`best_classifier(df, minutes=10)`')
SETS = dict(trec='TREC questions', custrev='customer reviews', mpqa='opinions (MPQA)', subj='subjectivity')
OTHER = dict(speakers='who speaks (tinyshakespeare, 20)', names='what kind of name (CoNLL-2003, 4)', packages='whose docstring (6 packages)')
PUBLISHED_SMALL = [
    ('NB-SVM of words and pairs', '–', '81.8', '86.3', '93.2', '91.2', '[Wang and Manning 2012](https://aclanthology.org/P12-2018/), tables 2 and 3'),
    ('CNN-rand', '91.2', '79.8', '83.4', '89.6', '–', '[Kim 2014](https://arxiv.org/abs/1408.5882), table 2')]

def small():
    sets = [*SETS,'imdb']
    def acc(k, s):
        rs = rows('sets', candidate=k, set=s)
        return f"{mean(rs, 'accuracy'):.1f}" if rs else '–'
    lines = [(what, *[acc(k, s) for s in sets], f"{mean(on_short(k), 'accuracy'):.1f}", f"{mean(on_short(k), 'core-minutes'):.1f}")
             for k,what in SMALL.items()]
    names = [*SETS.values(),'IMDB']
    published = table(['published, not run here',*names,'source'], PUBLISHED_SMALL)
    whole = {f'{s}/10':name for s,name in SETS.items() if len(rows('sets', candidate='best', set=f'{s}/10')) == 10}
    ours = ', '.join(f"{acc('best', t)} % ({acc('bigrams', t)}) of {name}" for t,name in whole.items())
    tenths = f"Both papers give means over ten tenths of the customer reviews, MPQA and subjectivity. So measured, `best_classifier` (in brackets the linear model of words and pairs) gets {ours} right " \
             f"(`sets.py --data FOLDER --sets {' '.join(whole)} --only bigrams best --seeds 0 1 2 3 4 5 6 7 8 9`)."
    here = [k for k in SMALL if any(rows('sets', candidate=k, set=o) for o in OTHER)]
    runs = {k:max(len(rows('sets', candidate=k, set=o)) for o in OTHER) for k in here}
    other = f"Texts of other kinds, of at most 4,000 a third scored; the number of classes in brackets. Names and technical texts gain from letters, speeches of very different lengths from rarity; " \
            f"`best_classifier` tries both on held-out texts (`sets.py --data FOLDER --sets {' '.join(OTHER)}`).\n\n" \
            + table(['candidate',*OTHER.values(),'seeds'], [(SMALL[k], *[acc(k, o) for o in OTHER], runs[k]) for k in here])
    return block('accuracy on four sets: the linear model, the plain call and the best', 'small',
                 table(['candidate',*names,'mean of the first four','core-minutes of one of them'], lines),
                 ['sets.py --data FOLDER --threads 1', 'sets.py --data FOLDER --threads 1 --sets imdb --only bigrams default best'],
                 rows('sets'), 'sets', f'{published}\n{tenths}\n\n{other}\n')

WORDS = dict(txf='`transformer_lm_learner`: width 128, 2 layers, dropout 0.3',
             workshop="the fastai workshop's transformer: width 256, 8 wide heads, 3 layers, batches of 64")

def trained_words(candidate): return one('lm_sample', candidate=candidate, asked='12 epochs', seed=0, n=None)

def words():
    rs = {k:trained_words(k) for k in WORDS}
    lines = [(what, f"{rs[k]['loss']:.2f}", f"{rs[k]['perplexity']:.0f}", f"{rs[k]['params']/1e6:.1f} million",
              f'`lm_sample.py --epochs 12 --only {k}`') for k,what in WORDS.items()]
    return block('validation loss of two language models', 'words',
                 table(['model','valid loss','perplexity','parameters','command'], lines),
                 ['lm_sample.py --epochs 12'], list(rs.values()), 'lm_sample')

def shakespeare():
    a,b = (rows('shakespeare', candidate=k) for k in ('txf','plain'))
    took = statistics.median(x['seconds']/y['seconds'] for x,y in zip(a, b))
    lines = [('`transformer_lm_learner`, preset `default`, `adamw`, sinusoidal positions, learning rate 4e-3',
              f"**{mean(a, 'loss'):.2f}** ({each(a, 'loss', '.2f')})", f'{took:.2f}'),
             ("the same size as nanoGPT arranges it, with nanoGPT's schedule, in a plain loop",
              f"{mean(b, 'loss'):.2f} ({each(b, 'loss', '.2f')})", '1')]
    return block('validation loss for each seed', 'shakespeare', table(['model','valid loss','time'], lines),
                 ['shakespeare.py --threads 1'], [*a, *b], 'shakespeare')

SPEEDRUN = dict(plain="nanoGPT's arrangement and recipe, in a plain loop",
                quarter="`transformer_lm_learner(dls, 'modern', opt_func=muon)`, one `fit_wsd`", whole='the same, longer')

def parts_of_plain(rs):
    "The part of the time of `plain` that each run takes, of the same processor and seed."
    took = {(r['machine'],r['seed']):r['seconds'] for r in rows('speedrun', candidate='plain')}
    return [r['seconds']/took[r['machine'],r['seed']] for r in rs]

def share_of_plain(rs): return statistics.median(parts_of_plain(rs))

def machines(name): return list(dict.fromkeys(r['machine'] for r in rows(name)))

def span(numbers, form):
    "The least and the most, or the one that they are."
    return '–'.join(dict.fromkeys(format(f(numbers), form) for f in (min,max)))

def span_of_plain(candidate):
    "The part of the time of `plain`, per cent: the medians of all processors."
    return span([100*share_of_plain(rs) for m in machines('speedrun') if (rs := rows('speedrun', candidate=candidate, machine=m))], '.0f')

def speedrun():
    lines = [(short_machine(rs[0]), what + ', `to_bf16`'*bool(rs[0].get('half')), f"{rs[0]['steps']:,}", f"**{statistics.median(r['loss'] for r in rs):.2f}** ({each(rs, 'loss', '.3f')})", f'{100*share_of_plain(rs):.0f} %')
             for m in machines('speedrun') for k,what in SPEEDRUN.items() if (rs := rows('speedrun', candidate=k, machine=m))]
    return block('validation loss against the part of the time', 'speedrun', table(['processor','model','steps','valid loss','time'], lines),
                 ['speedrun.py --threads 1 --clock processor'], rows('speedrun'), 'speedrun')

def deepest(): return min(rows('deeper'), key=lambda r: r['loss'])

def deeper():
    "How far a CPU gets to the loss that is published for a GPU."
    r = deepest()
    return (f"On a GPU nanoGPT publishes {1.4697} for 6 layers of width 384 and 256 characters, after about 3 minutes of an A100 ([its README](https://github.com/karpathy/nanoGPT)). "
            f"{r['shape']['n_layers']} layers of width {r['shape']['d_model']} and {r['shape']['max_len']} characters, with the same preset and optimizer, reach **{r['loss']:.4f}** in {r['core_minutes']:.0f} minutes of one core (in bfloat16; the best of {len(rows('deeper'))} runs, [all of them](results/deeper.md): twice the steps are too many, and the loss rises again) "
            f"(`.venv/bin/python benchmarks/deeper.py --threads 1 --seed {r['seed']} --minutes {r['core_minutes']:.0f}`).")

DEFAULTS = [('default','adamw'),('default','muon'),('dropout','muon'),('modern','muon')]
FIRST_RUNS = dict(minutes=0.75, seed=0) # of `defaults.py`: presets, optimizers and rates; later seeds are of pairs of tokens
DEFAULT_SETS = dict(characters='characters', pieces='byte pairs of docstrings', words='words of reviews', captions='words of captions')
DEFAULT_SHAPES = dict(default='`default`', dropout='`modern`, dropout 0.1', modern='`modern`')

def first_runs(**want): return [r for r in rows('defaults', **FIRST_RUNS, **want) if r.get('batches', 'full') == 'full']

def best_defaults(shape, opt, text):
    "The rows of the best rate of a preset and an optimizer on a text."
    rs = first_runs(shape=shape, opt=opt, set=text)
    by_rate = {lr:[r for r in rs if r['lr']==lr] for lr in {r['lr'] for r in rs}}
    return min(by_rate.values(), key=lambda rs: mean(rs, 'loss'), default=[])

def defaults():
    def losses(shape, opt, lr):
        rs = [first_runs(shape=shape, opt=opt, lr=lr, set=s) for s in DEFAULT_SETS]
        return [f"{mean(r, 'loss'):.2f}" if r else '–' for r in rs]
    rates = {r['lr'] for r in first_runs()}
    lines = [(DEFAULT_SHAPES[k], f'`{opt}`', f'{lr:g}', *losses(k, opt, lr)) for k,opt in DEFAULTS for lr in sorted(rates)]
    lines = [l for l in lines if {*l[3:]} != {'–'}]
    return block('how much lower the loss is than that of the preset default with Adam, in nats a token', 'defaults',
                 table(['preset','optimizer','largest rate',*DEFAULT_SETS.values()], lines),
                 ['defaults.py --minutes 0.75'], first_runs(), 'defaults')

GROWING = dict(full='full from the start', short='16 tokens a row at first, full after 0.3 of the time',
               half='the same, full after half of the time', few='2 rows at first, full after 0.3 of the time')

def grown():
    "The rows of batches that grow, and of those beside them."
    return [r for r in rows('defaults', shape='modern', opt='muon', lr=0.01) if 'batches' in r and r['minutes'] != 0.75]

def grown_loss(minutes, batches, text):
    return [r['loss'] for r in grown() if (r['minutes'],r['batches'],r['set']) == (minutes,batches,text)]

def growing():
    budgets = sorted({r['minutes'] for r in grown()})
    def losses(m, k): return [f'{statistics.mean(ls):.3f}' if (ls := grown_loss(m, k, s)) else '–' for s in DEFAULT_SETS]
    lines = [(f'{m:g}', what, *losses(m, k)) for m in budgets for k,what in GROWING.items()]
    lines = [l for l in lines if {*l[2:]} != {'–'}]
    one_core = 'defaults.py --shapes modern --opts muon --lrs 0.01'
    return block('how much lower the loss is with short rows at first, in nats a token', 'growing',
                 table(['core-minutes','batches',*DEFAULT_SETS.values()], lines),
                 [f'{one_core} --minutes 1 --batches full short half few --seeds 0 1', f'{one_core} --minutes 4 --batches full short'], grown(), 'defaults')

TRANSLATORS = dict(txf='`transformer_seq2seq_learner`',
                   muon='the same with `opt_func=muon`, 10 epochs in bfloat16',
                   torch='`nn.Transformer` of torch 2.13 in the same learner: pre-norm, sinusoids, shared embeddings')

def translation():
    def bleu(k, split): return f"{mean(translators(k, split), 'bleu'):.1f} ({mean(translators(k, split), 'greedy'):.1f})"
    lines = [(what, bleu(k, 'test'), bleu(k, 'valid'), f'`multi30k.py --only {k} --threads 1`')
             for k,what in TRANSLATORS.items()]
    run,took = 'multi30k.py --only txf muon torch --threads 1', rows('multi30k', split='speed')[-1]
    ms = took['step_ms']
    more = (f"With `muon` the training takes **{100*took['share']:.0f} %** of the time: {ms['muon']:.0f} ms of the processor for a step, {ms['txf']:.0f} with `adamw` in fp32, "
            'in turns on one thread of a processor with `avx512_bf16`. '
            f"The same recipe, English to German: {bleu('back', 'test')} on the test pairs (`multi30k.py --only back --seeds 0 1 --threads 1`, {seeds(translators('back', 'test'))}).\n\n")
    return block('BLEU with a beam of five', 'translation', table(['model','test','validation pairs','command'], lines),
                 [run, f'{run} --valid', 'multi30k.py --speed --threads 1', 'multi30k.py --only muon --seeds 1 --threads 1', 'multi30k.py --only back --seeds 0 1 --threads 1'], [*(r for k in TRANSLATORS for s in ('test','valid') for r in translators(k, s)), *translators('back', 'test'), took], 'multi30k', more)

STEPS = dict(
    ours='`TransformerLM`', chunked='the same without logits (`ChunkedLoss`)',
    ours_compiled='`TransformerLM` with `compile=True`', nano="nanoGPT's arrangement, written out in `common.py`",
    x='x-transformers 2.31.10', hf='GPT-2 of Hugging Face transformers 5.23.0',
    torch='`nn.TransformerEncoder` of torch 2.13', workshop="the fastai workshop's model",
    learner='`transformer_lm_learner`, rotary positions, `adamw`, in a `fit`',
    learner_same='`transformer_lm_learner`, learned positions, in a `fit`',
    learner_bf16='the same after `to_bf16`', learner_bf16_compiled='the same with `compile=True`',
    nano_bf16="nanoGPT's arrangement in bfloat16", nano_bf16_compiled='the same, compiled',
    x_bf16_compiled='x-transformers in bfloat16, compiled', hf_bf16_compiled='GPT-2 of Hugging Face in bfloat16, compiled')

def step_rows(candidate):
    "The rows of a candidate, one for each processor, the last one measured at the end."
    found = {}
    for r in rows('train', candidate=candidate):
        found.pop(r['machine'], None)                                         # one measured again comes last
        found[r['machine']] = r
    if not found: raise ValueError(f'results/train.jsonl has no row of {candidate}')
    return list(found.values())

def step_row(candidate): return step_rows(candidate)[-1]

def step_span(candidate):
    "The time of a candidate's step as a part of that of nanoGPT's arrangement in fp32: the least and the most of all processors."
    nano = {r['machine']:r['ratio'] for r in step_rows('nano')}
    return span([r['ratio']/nano[r['machine']] for r in step_rows(candidate)], '.2f')

CLOCKS = dict(wall='by the clock', processor="by the processor's seconds")

def threads(row): return int(re.search(r'(\d+) threads', row['machine'])[1])

def how(row):
    "The options of a measurement."
    return f"--threads {threads(row)} --clock {row['clock']}"

def step_how():
    "How the steps of the table were measured."
    r = step_row('nano')
    n = threads(r)
    return f"on {in_words(n)} thread{'s'*(n > 1)}, {CLOCKS[r['clock']]}; the figure is the median of the ratios of {in_words(r['rounds'])} rounds"

def step():
    rs = {k:step_row(k) for k in STEPS}
    lines = [(n, f"{rs[k]['ratio']:.2f}", f"{rs[k]['mb']['2048']:,}" if 'mb' in rs[k] else '') for k,n in STEPS.items()]
    return block("time of a training step, times that of TransformerLM", 'step', table(['model','time','MB'], lines),
                 [f"train.py {how(rs['nano'])}"], list(rs.values()), 'train')

def short_machine(row): return re.sub(r', \d+ cores.*', '', row['machine'])

def step_machine(): return short_machine(step_row('nano'))

def step_speeds():
    "How many steps a learner takes in the time of the fastest peer's one, and in how much memory, on each processor."
    keys = 'learner','learner_same','learner_bf16','nano','nano_bf16'
    def line(got):
        speeds = [f"{r['speed']:.2f}" for r in got[:3]]
        return (short_machine(got[0]), *speeds, *(f"{r['mb']['2048']:,}" for r in got))
    return table(['processor','fp32','learned positions','the same in bfloat16','MB','MB, learned','MB, bfloat16',"MB, nanoGPT's arrangement",'MB, the same in bfloat16'],
                 [line([next(r for r in step_rows(k) if r['machine'] == m) for k in keys]) for m in (r['machine'] for r in step_rows('nano'))])

def compiled_peers():
    names = dict(nano="nanoGPT's arrangement", hf='Hugging Face', x='x-transformers')
    return ', '.join(f"{n} {step_row(f'{k}_compiled')['ratio_compiled']:.2f}" for k,n in names.items())

GENERATORS = dict(
    ours='`generate`, learned positions', rotary='`generate`, rotary positions',
    compiled='`generate(compile=True)`, learned positions', hf='GPT-2 of Hugging Face transformers 5.23.0',
    x='x-transformers 2.31.10')

def speed(candidate, bs=1, machine=0):
    "The row of one of the processors, in the order in which they came."
    return one('generate', candidate=candidate, bs=bs, machine=machines('generate')[machine])

def written_elsewhere(machine):
    ours,half = ([speed(k, bs, machine) for bs in (1, 32)] for k in ('ours','bf16'))
    return (f"On {short_machine(ours[0])} the same command gave {ours[0]['tokens_per_s']:,} tokens a second for one text with learned positions, {ours[0]['ratio']:.1f} times Hugging Face's, "
            f"and {ours[1]['ratio']:.1f} times for 32 texts; with weights in bfloat16 {half[0]['ratio']:.1f} and {half[1]['ratio']:.1f} times.\n\n")

def generation():
    def rate(k, bs): return f"{speed(k, bs)['tokens_per_s']:,}", f"{speed(k, bs)['ratio']:.1f}"
    lines = [(n, *rate(k, 1), *rate(k, 32)) for k,n in GENERATORS.items()]
    return block('tokens a second, one text', 'generation',
                 table(['tokens a second','one text','times Hugging Face','32 texts','times Hugging Face'], lines),
                 ['generate.py --threads 2'], rows('generate'), 'generate',
                 '\n' + ''.join(map(written_elsewhere, range(1, len(machines('generate'))))))

def first_compiled_call(): return f"{min(speed('compiled', bs)['first'] for bs in (1, 32)):.0f}"

TOKENIZERS = dict(
    fastai="fastai's default (2.8.12, spaCy 3.8.18), two processes",
    spacy_plain='`FastSpacyTokenizer` in the same pipeline: the same tokens',
    spacy='`FastSpacyTokenizer` in `LMDataLoaders`, one process',
    bpe_trained='`BPETokenizer`, trained before, one process', bpe='`BPETokenizer`, training included')

def tokenized(candidate): return by_seed(rows('tokenizing', candidate=candidate, n=None, asked=25_000))

def tokenizing():
    base = {r['seed']:r['texts_per_s'] for r in tokenized('fastai')}
    def times(rs): return ', '.join(f"{r['texts_per_s']/base[r['seed']]:.1f}" for r in rs)
    lines = [(n, each(tokenized(k), 'texts_per_s', ',.0f'), times(tokenized(k))) for k,n in TOKENIZERS.items()]
    return block('texts a second', 'tokenizing', table(['from text to ids','texts a second',"times fastai's rate"], lines),
                 ['tokenizing.py'], [r for k in TOKENIZERS for r in tokenized(k)], 'tokenizing')

LOADERS = dict(lm="fastai's `LMDataLoader` (2.8.12)", flat='`FlatLMDataLoader`',
               random="`FlatLMDataLoader(windows='random')`")

def batches():
    rs = {k:rows('tokenizing', candidate=f'{k}_100M') for k in LOADERS}
    lines = [(n, each(rs[k], 'batch_ms'), each(rs[k], 'start_s', '.2f')) for k,n in LOADERS.items()]
    return block('milliseconds a batch', 'batches', table(['loader','ms a batch','seconds to the first'], lines),
                 ['tokenizing.py'], sum(rs.values(), []), 'tokenizing')

EPOCHS = dict(ours='`TransformerClassifier`', compiled='`TransformerClassifier`, `compile=True`',
              torch='`nn.TransformerEncoder` of torch 2.13')

def epoch():
    rs = {k:one('epoch', candidate=k) for k in EPOCHS}
    clock = dict(wall='seconds', processor='processor seconds')[rs['torch']['clock']]
    lines = [(n, f"{rs[k]['seconds']:.1f}", f"{rs[k]['ratio']:.2f}", f"{rs[k]['tokens']:,}") for k,n in EPOCHS.items()]
    return block('real tokens a second', 'epoch',
                 table(['model',clock,"times torch's rate of batches",'real tokens read'], lines),
                 [f"epoch.py {how(rs['torch'])}"], list(rs.values()), 'epoch')

def packing():
    "What rows of tokens without padding could bring there."
    part,ways = one('packing', batches='sorted'),{k:one('packing', candidate=k) for k in ('nested','flex')}
    return (f"{100*part['padding']:.1f} per cent of such a batch are padding, so whole batches as one row of tokens without it could be {1/(1-part['padding']):.2f} times as fast at most. "
            f"What torch has for that on a CPU is slower: attention over nested tensors takes {ways['nested']['ratio']:.1f} times as long as padding and a mask, "
            f"and flex attention refuses: *{ways['flex']['refused']}* ([rows](results/packing.md), `.venv/bin/python benchmarks/packing.py --threads 1 --clock processor`). Not measured on a GPU. The classifiers pad.")

SCALES = dict(full='all logits', chunked='`ChunkedLoss`', twice='`checkpoint=True`', both='both')

def scale():
    rs = {k:one('scale', candidate=k) for k in SCALES}
    def line(r): return f"{r['mb']:,}", f"{r['mb']/rs['full']['mb']:.2f}", f"{r['seconds']:.2f}"
    return block('MB at the peak', 'scale',
                 table(['step','MB','of the first','processor seconds'], [(n, *line(rs[k])) for k,n in SCALES.items()]),
                 ['scale.py'], list(rs.values()), 'scale')

GPU_STEPS = dict(
    learner='`transformer_lm_learner`, in a `fit`', learner_logits='the same with `keep_logits`',
    learner_compiled='`transformer_lm_learner(compile=True)`', nano="nanoGPT's arrangement in a plain loop",
    nano_compiled='the same, compiled', hf='GPT-2 of Hugging Face transformers 5.17.0 in a plain loop')

def on_gpu(candidate, **want): return one('gpu', candidate=candidate, **want)

def gpu():
    rs = {k:on_gpu(k) for k in GPU_STEPS}
    lines = [(n, f"{rs[k]['tokens_per_s']:,}", f"{rs[k]['ratio']:.2f}", f"{rs[k]['mb']:,}") for k,n in GPU_STEPS.items()]
    ours,hf = (on_gpu(k, bs=1) for k in ('write','write_hf'))
    more = (f"One text after a prompt of 16 tokens, 128 new ones, weights in bfloat16: `generate` writes **{ours['tokens_per_s']}** tokens a second, "
            f"`generate` of Hugging Face {hf['tokens_per_s']}, a rate {ours['ratio']:.1f} times as high.\n\n")
    return block('tokens a second, one training step', 'gpu', table(['training step','tokens a second','times nanoGPT','MB'], lines),
                 ['gpu.py step --rounds 3', 'gpu.py write --rounds 3 --only write write_hf'], [*rs.values(), ours, hf], 'gpu', more)

DECODERS = dict(fp32='`generate`, fp32', compiled='`generate(compile=True)`, fp32', int8='`to_int8`', packed="torch's `_weight_int8pack_mm`, not kept",
                onnx="onnxruntime on `to_onnx`'s graph, fp32", onnx_dynamic='the same, `quantize_dynamic`', onnx_nbits='the same, `MatMulNBits` of 8 bits')

def eight_bits():
    "What weights of eight bits bring to a step and to one map."
    rs,maps = rows('serving', part='int8'),{(r['n_in'],r['n_out'],r['rows'],r['candidate']):r for r in rows('serving', part='maps')}
    by = {(r['candidate'],r['width']):r for r in rs}
    widths = sorted({r['width'] for r in rs})
    def rate(r): return f"{r['processor_tokens_per_s']:,} ({r['processor_ratio']:.2f})"
    steps = [(n, *(rate(by[k,w]) for w in widths)) for k,n in DECODERS.items() if (k,widths[0]) in by]
    shapes = {'256 → 10,000, 1 token':(256,10_000,1), '256 → 768, 256 tokens':(256,768,256)}
    one_map = [('fp32' if k == 'fp32' else DECODERS[k], *(f"{maps[*s,k]['processor_us']:,.0f}" for s in shapes.values())) for k in ('fp32','int8','packed')]
    return (f"A model of {rs[0]['layers']} layers that writes one text, vocabulary 10,000; in brackets how many times as fast as {DECODERS[rs[0]['base']]}. Then one map, in microseconds of the processor. One thread.\n\n"
            f"{table(['tokens a processor second', *(f'width {w}' for w in widths)], steps)}\n{table(['one map, µs', *shapes], one_map)}\n"
            f"`.venv/bin/python benchmarks/serving.py --only maps int8`, its other parts measure a trained model at work. {measured([*rs, *maps.values()])} [All rows](results/serving.md).")

QUESTIONS = [imdb, few, small, words, defaults, growing, shakespeare, speedrun, translation, step, generation, gpu, tokenizing, batches, epoch, scale]

# Pictures

def bars(ax, values, ours, unit, fmt='{:,.0f}', hatched=()):
    "Horizontal bars in the order given, each with its number."
    names = list(values)[::-1]
    for i,k in enumerate(names):
        colour = OURS if k in ours else PEER
        ax.barh(i, values[k], color=colour, hatch='///' if k in hatched else None, edgecolor='white', height=0.7)
        ax.text(values[k], i, ' ' + fmt.format(values[k]), va='center', fontsize=9)
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.set_xlabel(unit, fontsize=9)
    ax.spines[['top','right']].set_visible(False)

def draw_imdb(ax):
    v = {'read first, with words and vectors':mean(teachers(25_000), 'accuracy, taught'),
         'read first, then labels':mean(longest_read('imdb','pretrained'), 'accuracy'),
         'linear, word pairs':one('imdb', candidate='bigram')['accuracy'], 'labels only':mean(labels_only(), 'accuracy')}
    short = "the workshop's transformer",'Keras example','NB-SVM','LSTM, read first','AWD_LSTM, Wikipedia'
    pub = {n:float(f) for n,(_,f,_) in zip(short, PUBLISHED_IMDB)}
    best = dict(sorted({**v, **pub}.items(), key=lambda o: -o[1]))
    bars(ax, best, ('read first, with words and vectors','read first, then labels','labels only'), '% of the test reviews right (50: guessing)', '{:.1f}', pub)
    ax.set_xlim(50, 100)

def draw_few(ax):
    names = dict(language='language model', student='self-training', counted='counted', labels='labels only',
                 bigram='linear baseline')
    for k,n in names.items():
        rs = few_labels(k)
        x = statistics.fmean(r['minutes'] + r.get('text_minutes', 0) for r in rs)
        ax.plot([x]*len(rs), [r['accuracy'] for r in rs], 'o', c=PEER if k=='bigram' else OURS)
        ax.annotate(n, (x, mean(rs, 'accuracy')), (8, 0), textcoords='offset points', fontsize=9, va='center')
    rs = teachers(1000)
    x = statistics.fmean(r['text_minutes_each']['vectors'] + r['minutes of each, taught']['vectors'] for r in rs)
    ax.plot([x]*len(rs), [r['vectors, taught'] for r in rs], 'o', c=OURS)
    ax.annotate('vectors of texts', (x, mean(rs, 'vectors, taught')), (8, 0), textcoords='offset points', fontsize=9, va='center')
    for r in students(1000):
        x = r['text_minutes'] + r['minutes, taught'] + r['minutes']
        ax.plot(x, r['accuracy'], 'o', c=OURS)
        ax.annotate('both ways, taught', (x, r['accuracy']), (-8, 0), textcoords='offset points', fontsize=9, va='center', ha='right')
    ax.set(xscale='log', xlabel='minutes of one core', ylabel='% right', xlim=(0.03, 600))
    ax.spines[['top','right']].set_visible(False)

def draw_small(ax):
    marks = dict(bigrams=('linear',PEER,'o'), default=('plain call',OURS,'|'), best=('best_classifier',OURS,'o'))
    for y,k in enumerate(list(SETS)[::-1]):
        for c,(name,colour,m) in marks.items():
            ax.plot(mean(rows('sets', candidate=c, set=k), 'accuracy'), y, m, c=colour, ms=11, mew=2, label=name if y == 0 else None)
    ax.set_yticks(range(len(SETS)), list(SETS.values())[::-1])
    ax.set(xlabel='% right', ylim=(-0.6, len(SETS)-0.4))
    ax.legend(fontsize=8, loc='upper left'); ax.spines[['top','right']].set_visible(False)

def draw_words(ax):
    losses = {n:trained_words(k)['loss'] for n,k in (('fastai_txf','txf'), ("the workshop's",'workshop'))}
    bars(ax, losses, ('fastai_txf',), 'validation loss (less is better)', '{:.2f}')

def draw_defaults(ax):
    for i,(k,opt) in enumerate(DEFAULTS[1:]):
        gain = [mean(best_defaults('default', 'adamw', s), 'loss') - mean(best_defaults(k, opt, s), 'loss') for s in DEFAULT_SETS]
        y = [j + 0.25*(1-i) for j in range(len(gain))][::-1]
        ax.barh(y, gain, height=0.22, color=OURS, alpha=(0.35,0.6,1)[i], label=f"{DEFAULT_SHAPES[k].replace('`', '')}, {opt}")
    ax.set_yticks(range(len(DEFAULT_SETS)), [*DEFAULT_SETS.values()][::-1], fontsize=9)
    ax.set_xlabel('nats a token below the preset default with adamw, each at its best rate', fontsize=9)
    ax.legend(fontsize=8, loc='lower right'); ax.spines[['top','right']].set_visible(False)

def draw_growing(ax):
    budgets = [m for m in sorted({r['minutes'] for r in grown()}) if all(grown_loss(m, k, s) for k in ('full','short') for s in DEFAULT_SETS)]
    for i,m in enumerate(budgets):
        gain = [statistics.mean(grown_loss(m, 'full', s)) - statistics.mean(grown_loss(m, 'short', s)) for s in DEFAULT_SETS]
        y = [j + 0.6*((len(budgets)-1)/2-i)/len(budgets) for j in range(len(gain))][::-1]
        ax.barh(y, gain, height=0.56/len(budgets), color=OURS, alpha=1/(i+1), label=f"{m:g} core-minute{'s'*(m != 1)}")
    ax.axvline(0, color='black', lw=0.8)
    ax.set_yticks(range(len(DEFAULT_SETS)), [*DEFAULT_SETS.values()][::-1], fontsize=9)
    ax.set_xlabel('nats a token below batches that are full from the start, in the same time', fontsize=9)
    ax.legend(fontsize=8, loc='lower right'); ax.spines[['top','right']].set_visible(False)

def draw_shakespeare(ax):
    for y,(k,c) in zip((1, 0), (('txf',OURS), ('plain',PEER))):
        ax.plot([r['loss'] for r in rows('shakespeare', candidate=k)], [y]*3, 'o', c=c, ms=8)
    ax.axvline(1.88, c='0.5', lw=1, ls='--')
    ax.text(1.88, 1.45, ' published', fontsize=9, va='center')
    ax.set_yticks([1, 0], ['fastai_txf',"nanoGPT's arrangement"])
    ax.set(xlabel='validation loss (less is better)', ylim=(-0.6, 1.7))
    ax.spines[['top','right']].set_visible(False)

def draw_speedrun(ax):
    for ks,name,c in ((('plain',), "nanoGPT's arrangement", PEER), (('quarter','whole'), "modern, muon", OURS)):
        found = [r for k in ks for r in rows('speedrun', candidate=k)]
        ax.plot([100*o for o in parts_of_plain(found)], [r['loss'] for r in found], 'o', c=c, ms=8, label=name)
    ax.axhline(1.88, c='0.5', lw=1, ls='--')
    ax.text(60, 1.885, "nanoGPT's published loss", fontsize=9, va='bottom')
    ax.set(xlabel="% of the plain loop's time", ylabel='validation loss', xlim=(0, None))
    ax.legend(fontsize=8, loc='lower left'); ax.spines[['top','right']].set_visible(False)

def draw_translation(ax):
    bleu = {n:mean(translators(k, 'test'), 'bleu') for k,n in dict(txf='fastai_txf', muon='with muon', torch='nn.Transformer').items()}
    bars(ax, bleu, ('fastai_txf','with muon'), 'BLEU', '{:.1f}')

def draw_step(ax):
    short = dict(ours='TransformerLM', chunked='without logits', ours_compiled='compiled', learner="a learner, peers' AdamW",
                 learner_bf16='a learner, bfloat16', nano_bf16='nanoGPT, bfloat16', nano="nanoGPT's arrangement",
                 x='x-transformers', hf='Hugging Face', torch='nn.TransformerEncoder', workshop="the workshop's")
    ratios = {n:step_row(k)['ratio'] for k,n in short.items()}
    bars(ax, ratios, list(ratios)[:5], "times TransformerLM's time (less is better)", '{:.2f}')

def draw_generation(ax):
    short = dict(ours='learned positions', rotary='rotary positions', compiled='compiled', hf='Hugging Face',
                 x='x-transformers')
    rates = {n:speed(k)['tokens_per_s'] for k,n in short.items()}
    bars(ax, rates, list(rates)[:3], 'tokens a second, one text')

def draw_gpu(ax):
    short = dict(learner='a learner', learner_logits='with its logits', learner_compiled='a learner, compiled', nano="nanoGPT's arrangement", nano_compiled='the same, compiled', hf='Hugging Face')
    rates = {n:on_gpu(k)['tokens_per_s']/1000 for k,n in short.items()}
    bars(ax, rates, list(rates)[:3], 'thousand tokens a second, training')

def draw_tokenizing(ax):
    short = dict(fastai='fastai', spacy_plain="fast spaCy, fastai's pipeline", spacy='fast spaCy, LMDataLoaders',
                 bpe='byte pairs, with training', bpe_trained='byte pairs')
    rates = {n:mean(tokenized(k), 'texts_per_s') for k,n in short.items()}
    bars(ax, rates, list(rates)[1:], 'texts a second')

def draw_batches(ax):
    ms = {n:mean(rows('tokenizing', candidate=f'{k}_100M'), 'batch_ms')
          for k,n in dict(lm='fastai', flat='FlatLMDataLoader', random='random windows').items()}
    bars(ax, ms, list(ms)[1:], 'ms a batch (less is better)', '{:.1f}')

def draw_epoch(ax):
    rs = {n:one('epoch', candidate=k)
          for k,n in dict(ours='TransformerClassifier', compiled='compiled', torch='nn.TransformerEncoder').items()}
    bars(ax, {n:r['tokens']/r['seconds'] for n,r in rs.items()}, list(rs)[:2], 'real tokens a second')

def draw_scale(ax):
    mb = {n.strip('`'):one('scale', candidate=k)['mb'] for k,n in SCALES.items()}
    bars(ax, mb, list(mb)[1:], 'MB at the peak (less is better)')

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
    "The README's table of results: what, ours, beside whom, command. A new line goes here."
    def acc(rs): return f"{mean(rs, 'accuracy'):.1f} %"
    def bleu(k): return f"{mean(translators(k, 'test'), 'bleu'):.1f}"
    def loss(k): return f"{mean(rows('shakespeare', candidate=k), 'loss'):.2f}"
    def rate(k, bs): return span([speed(k, bs, i)['tokens_per_s'] for i in range(n_writing)], ',')
    def texts(k): return f"{mean(tokenized(k), 'texts_per_s'):,.0f}"
    n_writing = len(machines('generate'))
    plain = statistics.median(r['loss'] for r in rows('speedrun', candidate='plain'))
    lines = [
        ('IMDB, 25,000 labels and unlabelled reviews', f'{taught(25_000)} %',
         f"{acc(rows('imdb', candidate='bigram'))}, linear model of word pairs", 'unlabelled.py --labels 25000 --seeds 0 1 2 --students 0', 'imdb.py --only bigram'),
        ('IMDB, 1,000 labels and unlabelled reviews', f"{taught(1000, 'vectors')} %",
         f"{taught(1000, 'counted')} %, linear model", 'unlabelled.py --labels 1000 --seeds 0 1 2 --students 0'),
        ('four small labelled sets, three seeds, mean', acc(on_short('best')),
         f"{acc(on_short('bigrams'))}, linear model of word pairs", 'sets.py --data FOLDER --only bigrams best'),
        ('Multi30k, German to English, BLEU', f"{bleu('muon')} ({bleu('txf')} without `muon`)", f"{bleu('torch')}, `nn.Transformer`", 'multi30k'),
        ("characters at nanoGPT's CPU setting, loss", loss('txf'), f"{loss('plain')}, nanoGPT's arrangement", 'shakespeare'),
        ("its published loss of 1.88: time (`modern`, `muon`, bfloat16)", f"{span_of_plain('quarter')} %", f"100 %, nanoGPT's arrangement, to {plain:.2f} in fp32", 'speedrun'),
        ("its published loss for a GPU, 1.4697: minutes", f"{deepest()['core_minutes']:.0f}, one core", 'about 3, an A100 ([nanoGPT](https://github.com/karpathy/nanoGPT))', 'deeper'),
        (f"time of a training step (`ChunkedLoss`), {in_words(len(step_rows('nano')))} processors", step_span('chunked'), "1, nanoGPT's arrangement", 'train'),
        ('the same in bfloat16', step_span('learner_bf16'), f"{step_span('nano_bf16')}, nanoGPT's in bfloat16", 'train'),
        (f'tokens a second, one text, {in_words(n_writing)} processors', rate('ours', 1), f"{rate('hf', 1)}, Hugging Face GPT-2", 'generate'),
        ('the same, 32 texts', rate('ours', 32), f"{rate('hf', 32)}, Hugging Face GPT-2", 'generate'),
        ("reviews tokenized a second, fastai's tokens", texts('spacy_plain'), f"{texts('fastai')}, fastai", 'tokenizing')]
    head = ['measured on one or two CPU cores','fastai_txf','beside','command']
    return table(head, [(*l[:3], ', '.join(f'`benchmarks/{o if ".py " in o else f"{o}.py"}`' for o in l[3:])) for l in lines])

def figures():
    "Every figure that the README's prose may name; a new one goes here."
    def acc(rs): return f"{mean(rs, 'accuracy'):.1f}"
    return {'IMDB, all kinds':taught(25_000), 'IMDB, labels only':acc(labels_only()),
            'IMDB, linear':acc(rows('imdb', candidate='bigram')), 'few labels, vectors':taught(1000, 'vectors'),
            'few labels, linear':taught(1000, 'counted'), 'small sets':acc(on_short('best')),
            'small sets, linear':acc(on_short('bigrams')), 'IMDB, both':acc(rows('sets', candidate='best', set='imdb')),
            'IMDB, NB-weighted':acc(rows('sets', candidate='bigrams', set='imdb')),
            'core-minutes of vectors':f"{teachers(1000)[0]['text_minutes_each']['vectors']:.0f}",
            'tokens a second':f"{speed('ours')['tokens_per_s']:,}", 'times Hugging Face':f"{speed('ours')['ratio']:.1f}",
            'times Hugging Face, 32 texts':f"{speed('ours', 32)['ratio']:.1f}", 'published AWD_LSTM':PUBLISHED_IMDB[-1][1]}

def readme():
    "README.md with its table written anew."
    old = README.read_text(encoding='utf-8')
    return re.sub(r'(<!-- results -->\n).*?(<!-- /results -->)', lambda m: m[1] + summary() + m[2], old, flags=re.S)

# The page

def page():
    "benchmarks/README.md."
    put = {f.__name__:f for f in QUESTIONS} | {'compiled peers':compiled_peers, 'step machine':step_machine, 'step speeds':step_speeds, 'step how':step_how, 'eight bits':eight_bits, 'packing':packing, 'deeper':deeper, 'first compiled call':first_compiled_call}
    return re.sub(r'\{([a-z0-9 ]+)\}', lambda m: put[m[1]](), TEMPLATE.read_text(encoding='utf-8'))

def main():
    new = {PAGE:page(), README:readme()}
    old = [o.relative_to(HERE.parent) for o,txt in new.items() if not o.exists() or o.read_text(encoding='utf-8') != txt]
    if '--check' in sys.argv:
        raise SystemExit(f'not up to date: {", ".join(map(str, old))}: run benchmarks/page.py' if old else 0)
    for o,txt in new.items(): o.write_text(txt, encoding='utf-8')
    draw()

if __name__ == '__main__': main()
