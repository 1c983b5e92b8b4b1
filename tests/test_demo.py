"`python -m fastai_txf.demo`: what it prints, and its exit status when the models are good and when they are not"
import io, os, re, subprocess, sys
from math import nan
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch

from fastai_txf import demo

root = Path(__file__).parents[1]

def run(*args):
    "Run the demo as a user does, in a pipe"
    env = {**os.environ, 'PYTHONPATH':str(root), 'PYTHONUTF8':'1'}
    return subprocess.run([sys.executable, '-m', 'fastai_txf.demo', *args], cwd=root, env=env, capture_output=True, encoding='utf-8')

@pytest.fixture(scope='module')
def quick(): return run('--quick')

def test_succeeds(quick):
    "Status 0, all steps in order, no traceback, and the advice at the end"
    assert quick.returncode == 0, quick.stdout[-3000:] + quick.stderr[-3000:]
    assert re.findall(r'^(\d)\. ', quick.stdout, re.M) == list('1234')
    assert 'FAILED' not in quick.stdout and 'Traceback' not in quick.stderr
    assert 'transformer_classifier_learner(dls' in quick.stdout and 'is_lm=True' in quick.stdout

def test_scores_are_shown(quick):
    "The printed scores meet the demands, recomputed from the printed confusion matrix"
    acc,majority = (float(o)/100 for o in re.search(r'accuracy ([\d.]+)%.* gives ([\d.]+)%', quick.stdout).groups())
    cm = np.array([[int(o) for o in row.split()] for row in re.findall(r'^  \w+ +(\d+ +\d+ +\d+)$', quick.stdout, re.M)])
    assert cm.shape == (3,3) and abs(cm.trace()/cm.sum() - acc) < 1e-3 and abs(cm.sum(1).max()/cm.sum() - majority) < 1e-3
    assert acc - majority >= 0.3
    loss,unigram = re.search(r'validation loss ([\d.]+) .* has ([\d.]+)', quick.stdout).groups()
    assert float(loss) < float(unigram)

def test_plain_in_a_pipe(quick):
    "A row for each epoch; no bars or control characters"
    rows = re.findall(r'^  epoch \d  train_loss [\d.]+  valid_loss [\d.]+  (\w+) ', quick.stdout, re.M)
    assert rows == ['accuracy']*demo.QUICK['clf_epochs'] + ['perplexity']*demo.QUICK['lm_epochs']
    assert not re.search(r'[\r\x1b█]', quick.stdout)
    assert max(map(len, quick.stdout.splitlines())) < 200

def test_predictions_and_samples(quick):
    "Texts with label and probability, and each prompt continued"
    assert len(re.findall(r'^  \w+ +\d+%  (?:right|wrong, it is \w+): \S', quick.stdout, re.M)) == 4
    for o in demo.PROMPTS: assert re.search(rf'^  {re.escape(o)} → \S', quick.stdout, re.M), o

def test_help():
    res = run('--help')
    assert res.returncode == 0 and '--quick' in res.stdout
    assert run('--quik').returncode == 2

@pytest.mark.parametrize('scores,n', [((0.64,0.33,4.,5.),0), ((0.62,0.33,4.,5.),1), ((0.64,0.33,5.,5.),1), ((0.2,0.33,6.,5.),2), ((nan,0.33,nan,5.),2)])
def test_verdict(scores, n, capsys):
    "A line and status 1 for what falls short"
    assert demo.verdict(*scores) == (n > 0)
    out = capsys.readouterr().out
    assert out.count('FAILED: ') == n and ('your own text' in out) == (n == 0)

def test_failure_is_the_exit_status(monkeypatch, capsys):
    "Models that learn nothing end the program with status 1"
    for o in ('read_docs','text_loaders','print_batch','train_classifier','train_lm'): monkeypatch.setattr(demo, o, lambda *a, **k: None)
    monkeypatch.setattr(demo, 'report_classifier', lambda *a: (0.2, 0.17))
    monkeypatch.setattr(demo, 'report_lm', lambda *a: (6., 5.5))
    n = torch.get_num_threads()
    try: assert demo.main([]) == 1
    finally: torch.set_num_threads(n)
    assert capsys.readouterr().out.count('FAILED: ') == 2

def test_stdout_that_lacks_letters(monkeypatch):
    "Where stdout cannot write a piece's mark or an arrow there is a ? in its place"
    for o in ('read_docs','text_loaders','train_classifier','train_lm'): monkeypatch.setattr(demo, o, lambda *a, **k: None)
    monkeypatch.setattr(demo, 'print_batch', lambda *a: print('▁a'))
    monkeypatch.setattr(demo, 'report_classifier', lambda *a: (0.9, 0.17))
    monkeypatch.setattr(demo, 'report_lm', lambda *a: print('é →') or (5., 5.5))
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(io.BytesIO(), encoding='cp1252'))
    n = torch.get_num_threads()
    try: assert demo.main([]) == 0
    finally: torch.set_num_threads(n)
    sys.stdout.seek(0)
    assert {'?a','é ?'} <= {*sys.stdout.read().splitlines()}

def test_majority():
    "The largest class of the training set, scored on the validation set"
    df = pd.DataFrame(dict(label=list('aabbbb'), is_valid=[False]*3 + [True]*3))
    assert demo.majority_accuracy(df) == 0
    assert demo.majority_accuracy(df.assign(label=list('abbbba'))) == pytest.approx(2/3)
