"Pages whose cells train for minutes on downloaded data are not run with the others: here all their cells run on a few made-up texts, so that every call on them works"
import json, os, random, subprocess, sys
from pathlib import Path
import pandas as pd, pytest

ROOT = Path(__file__).parent.parent
GOOD,BAD = 'wonderful funny warm clever best lovely good great'.split(), 'terrible boring waste dull worst bad cold weak'.split()
REST = "the a film movie story music actors and was it in of this is one I have ever seen with but not by who what time Sincerely .".split()

def review(rng, good, n):
    "About `n` words that tell whether it is `good`"
    words = rng.choices(REST + 3*(GOOD if good else BAD), k=n)
    return ' '.join(words).capitalize() + '. This movie is one of the best movies. The acting is fine, the plot is a river!'

def write_reviews(home):
    "IMDB and its sample where fastai looks for them"
    rng = random.Random(0)
    for part,label,numbers in [(p, l, n) for p,n in dict(train=[*range(150), *range(11_250,11_330)], test=range(30)).items() for l in ('neg','pos')]:
        folder = home/'data'/'imdb'/part/label
        folder.mkdir(parents=True)
        for i in numbers: (folder/f'{i}_{9 if label == "pos" else 2}.txt').write_text(review(rng, label == 'pos', (20, 60, 330, 600)[i%4]), encoding='utf8')
    rows = [dict(label='positive' if i%2 else 'negative', text=review(rng, i%2, 60), is_valid=i%5 == 0) for i in range(100)]
    (home/'data'/'imdb_sample').mkdir()
    pd.DataFrame(rows).to_csv(home/'data'/'imdb_sample'/'texts.csv', index=False)

def write_pairs(home):
    "Sentences and translations, as Multi30k has them"
    de,en = 'Hund Mann Kind Ball Strand rennt spielt liegt'.split(), 'dog man child ball beach runs plays lies'.split()
    rng,folder = random.Random(0), home/'data'/'multi30k'
    folder.mkdir()
    for part,n in dict(train=300, val=40).items():
        rows = [rng.choices(range(8), k=rng.randint(3, 7)) for _ in range(n)]
        for l,words in dict(de=de, en=en).items():
            (folder/f'{part}.{l}').write_text('\n'.join(' '.join(words[i] for i in row).capitalize() + '.' for row in rows), encoding='utf8')

def write_plays(home):
    "Speeches"
    rng,folder = random.Random(0), home/'data'/'tinyshakespeare'
    folder.mkdir()
    said = ['To be,\nor not to be: that is the question!', "Where is my lady's Quill & key?", 'Vexed; a jolly fool -- he who goes home.', 'GOD BLESS HUMPTY; WAX JEWELS KEPT $3.']
    who = 'ROMEO','JULIET','KING RICHARD III','First Citizen'
    (folder/'input.txt').write_text('\n\n'.join(f'{rng.choice(who)}:\n{rng.choice(said)}' for _ in range(400)), encoding='utf8')

@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A home of fastai with a little of all data"
    home = tmp_path_factory.mktemp('fastai')
    for write in (write_reviews, write_pairs, write_plays): write(home)
    return home

# what a page asks of its data, and of a training of minutes, made small
SMALLER = dict(
    imdb={'min_freq=8':'min_freq=1', 'fit_one_cycle(2,':'fit_one_cycle(1,'},
    explanations={'sample(30,':'sample(3,', 'sample(120,':'sample(4,'},
    transfer={'sample(500,':'sample(60,', 'sample(3_000,':'sample(200,', '< 200)':'< 40)', '(100, 300, 1000)':'(20, 40, 120)'},
    word_lm={}, translation={'BPETokenizer(5000)':'BPETokenizer(300)'},
    characters={'epoch_len=250':'epoch_len=2'})

RUN = '''
import json, sys
from execnb.shell import CaptureShell
shell,failed = CaptureShell(mpl_format='png'), []
for i,source in enumerate(json.loads(sys.stdin.read())):
    out = shell.run(source)
    # what a page asserts of its model holds after the whole training
    if shell.exc and not isinstance(shell.exc, AssertionError): failed.append(f'{source[:200]}: {type(shell.exc).__name__}: {str(shell.exc)[:500]}')
print(json.dumps(failed))
'''

@pytest.mark.parametrize('page', SMALLER)
def test_every_call_works(page, home):
    "All cells of a page, the slow ones too, in order"
    if page == 'explanations' and not (home/'models').exists(): pytest.skip('it reads what the page imdb writes')
    cells = [''.join(c['source']) for c in json.loads((ROOT/'nbs'/'tutorials'/f'{page}.ipynb').read_text(encoding='utf8'))['cells'] if c['cell_type'] == 'code']
    for old,new in SMALLER[page].items():
        assert any(old in c for c in cells), old
        cells = [c.replace(old, new) for c in cells]
    env = {**os.environ, 'FASTAI_HOME':str(home), 'OMP_NUM_THREADS':'1'}
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', RUN], input=json.dumps(cells), capture_output=True, text=True, env=env, cwd=ROOT/'nbs'/'tutorials')
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
