"""200,000 short labelled texts: peak memory and minutes of the plain learner and of `best_classifier`, one process each.

The texts are sentences of the sets of sets.py with words left out and doubled, at random; the label says which set. Adds a line each to results/many.jsonl."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *
from sets import SETS, load

def texts(data, n, seed=0):
    "`n` texts that differ, and where each is from."
    rng = np.random.default_rng(seed)
    parts = {s:[o for o in load(data, s, 0)[0].text.str.split() if o] for s in SETS}
    def noisy(words):
        keep = rng.random(len(words)) > 0.2
        return ' '.join(w for w,k in zip(words, keep) for _ in range(1 + (rng.random() < 0.05)) if k) or words[0]
    rows = [(noisy(parts[s][rng.integers(len(parts[s]))]), s) for s in rng.choice(list(SETS), n)]
    return pd.DataFrame(rows, columns=['text','label'])

def default(df, minutes):
    learn = transformer_classifier_learner(TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_pct=0.1, seed=0, bs=64), metrics=accuracy)
    with learn.no_bar(), learn.no_logging(): learn.fit_minutes(minutes)
    return learn

def best(df, minutes): return best_classifier(df, minutes=minutes)

CANDIDATES = dict(default=default, best=best)
NAMES = dict(default='`transformer_classifier_learner(dls).fit_minutes(m)`', best='`best_classifier(df, minutes=m)`')

def run(name, args):
    torch.set_num_threads(args.threads)
    df = texts(args.data, args.n or 200_000)
    n = min(2000, max(1, len(df)//10))                                       # to score
    train,test = df[n:].reset_index(drop=True), df[:n]
    before,start,wall = peak(), time.process_time(), time.perf_counter()
    learn = CANDIDATES[name](train, args.minutes)
    right = np.mean([a == b for a,b in zip(learn.predict(test.text.tolist())[0], test.label)])
    return {'candidate':name, 'rows':len(train), 'asked':args.minutes, 'accuracy':100*float(right), 'minutes':(time.perf_counter()-wall)/60,
            'core-minutes':(time.process_time()-start)/60, 'peak':round(peak()), 'peak before':round(before), **about(args.threads)}

def render(rows):
    cols = {'candidate':lambda r: NAMES[r['candidate']], 'rows':'rows', 'm':'asked', 'minutes of the clock':'minutes', 'core-minutes':'core-minutes',
            'peak, MB':'peak', 'before, MB':'peak before', 'accuracy on 2,000 others':'accuracy'}
    return ('# 200,000 short texts\n\nWritten by `python benchmarks/many.py --data FOLDER --threads 1`. Sentences of four sets with words left out and doubled; the label is the set. '
            'The peak is the largest resident set of the process; before the call it holds the imports and the data frame.\n\n' + table(rows, cols) + '\n' + ran_with(rows, env=None))

def main():
    p = options(__doc__, CANDIDATES, minutes=1., recipes=False)
    p.add_argument('--data', type=Path, required=True, help='folder of the sets')
    args = p.parse_args()
    file = out_file(args, 'many')
    for name in args.only:
        if not args.child: subprocess.run([sys.executable, *sys.argv, '--child', '--only', name], check=True)
        else:
            print(json.dumps(row := run(name, args)))
            if file: add_row(file, row)
    if file and not args.child: file.with_suffix('.md').write_text(render(read_rows(file)))

if __name__ == '__main__': main()
