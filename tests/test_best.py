"`best_classifier`: any text, any targets, any amount of labels"
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F, unicodedata
from fastai.learner import load_learner
from fastai.text.core import SpacyTokenizer
from fastai_txf.recipes.best import best_classifier
from fastai_txf.recipes.pretrain import self_pretrain
from fastai_txf.recipes.heldout import check_rows, choose_shares, choose_strength, clearly_better, interval, joined, learning_curve, more_labels, no_better, standard_error, text_folds, unscored
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.words import FastSpacyTokenizer
from fastai_txf.train.counting import count_features
from fastai_txf.learn.classifier import transformer_classifier_learner
import fastai_txf.recipes.best as best
import fastai_txf.recipes.guesses as guesses
import fastai_txf.recipes.reading as reading
import fastai_txf.explain.attribution

words = 'red green blue black white pink brown grey gold teal'.split()

def frame(n=160, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.choice(words, 6) for _ in range(n)]
    return pd.DataFrame(dict(text=[' '.join(r) for r in rows], label=['warm' if r[0] in words[:5] else 'cold' for r in rows]))

def quick(df, minutes=0.02, **kw): return best_classifier(df, minutes=minutes, verbose=False, **kw)

def test_one_call_predicts_explains_exports(tmp_path):
    learn = quick(frame())
    assert learn.predict('red red red red red red')[0] == 'warm'
    assert abs(learn.explain('red gold gold').gap) < 0.1
    learn.export(tmp_path/'l.pkl')
    again = load_learner(tmp_path/'l.pkl')
    assert torch.equal(again.predict('red gold')[2], learn.predict('red gold')[2])
    assert again.report.results.equals(learn.report.results)
    r = learn.report.results
    assert r.returned.sum() == 1 and (r['from'] <= r.accuracy).all() and (r.accuracy <= r['to']).all()
    assert list(learn.report.curve.texts) == sorted(learn.report.curve.texts)

def test_validation_rows_stay_out():
    "Rows to score on take no part in training or choice: their texts are in no fold, their words in no vocabulary"
    df = frame().assign(valid=lambda d: np.arange(len(d)) % 4 == 0)
    df.loc[df.valid, 'text'] += ' onlyhere'
    learn = quick(df, valid_col='valid')
    assert learn.report.results.candidate.iloc[-1] == 'returned, validation rows'
    assert len(learn.dls.valid_ds) == df.valid.sum() and 'onlyhere' not in str(learn.codec.vocab)

def test_validation_rows_are_not_read():
    "Neither they nor copies in another case, where `unlabelled` holds them"
    df = frame(80).assign(valid=lambda d: np.arange(len(d)) % 4 == 0)
    df.loc[df.valid, 'text'] += ' onlyhere'
    learn = quick(df, valid_col='valid', unlabelled=[*df.text, *df.text.str.title(), *frame(40, seed=3).text])
    assert 'onlyhere' not in str(learn.codec.vocab) and 'transformer' in list(learn.report.results.candidate)
    assert len(quick(df, valid_col='valid', unlabelled=df.text[df.valid]).dls.valid_ds) == 20    # nothing is left to read

def test_rows_are_called_by_the_frames_index():
    "In errors, and where a mask has the index of the frame"
    df = frame(60).set_index(pd.Index(range(1000,1060)))
    with pytest.raises(ValueError, match=r'no text.*1 of 60 rows \(index 1007\)'): quick(df.assign(text=df.text.where(df.index != 1007)))
    with pytest.raises(ValueError, match='another index'): quick(df, valid_col=pd.Series(df.index % 4 == 0))
    learn = quick(df, valid_col=pd.Series(df.index % 4 == 0, index=df.index))
    assert len(learn.dls.valid_ds) == 15

@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('ask', [best_classifier, self_pretrain])
def test_few_words_to_read(ask):
    "Copies of eight words, and a sentence without spaces: there was not one batch for a language model, and `best_classifier` has no `val_bs`"
    df = pd.DataFrame(dict(text=words[:8]*20, label=[*'xxxxyyyy']*20))
    for df in (df, df.assign(text=df.text.map(dict(zip(words, ['看','听','说','好','坏','大','小','来']))))):
        res = ask(df[:40], unlabelled=df.text[40:], minutes=0.02, verbose=False)
        assert getattr(res, 'learn', res).predict(df.text[0])[0] in ('x','y')

@pytest.mark.parametrize('ask', [best_classifier, self_pretrain])
def test_whole_numbers_as_floats(ask):
    "The remedy is one that these calls have: they take no `y_block`"
    df = frame(60).assign(stars=lambda d: [float(1 + words.index(t.split()[0]) % 5) for t in d.text])
    with pytest.raises(ValueError, match="for numbers, move them by a half, df.'stars'. [+] 0.5, and predictions back$"): ask(df, label_col='stars', minutes=0.02, verbose=False)
    res = ask(df.assign(stars=df['stars'] + 0.5), label_col='stars', minutes=0.02, verbose=False)
    assert 'mse' in (res.results if ask is self_pretrain else res.report.results)

@pytest.mark.parametrize('ask', [best_classifier, self_pretrain])
def test_a_label_of_validation_alone(ask):
    "The remedy is one that these calls have"
    df = frame(60).assign(valid=[False]*50 + [True]*10)
    df.loc[55, 'label'] = 'new'
    with pytest.raises(ValueError, match="'new'.*index 55.: move some to training or leave them out$"): ask(df, valid_col='valid', minutes=0.02, verbose=False)

def test_labels_in_a_column_called_text(tmp_path):
    "Where the texts are in another one"
    df = frame(60).rename(columns=dict(text='body', label='text'))
    learn = quick(df, text_col='body', label_col='text', unlabelled=df[['body']])
    new = pd.DataFrame(dict(body=['red gold','pink']))
    assert {*learn.predict(new)[0]} <= {'warm','cold'} and learn.predict(new)[2].equal(learn.predict(['red gold','pink'])[2])
    with learn.no_bar(): assert learn.get_preds(dl=learn.dls.test_dl(df, with_labels=True))[1].tolist() == [['cold','warm'].index(o) for o in df.text]
    learn.export(tmp_path/'l.pkl')
    assert load_learner(tmp_path/'l.pkl').predict(new)[2].equal(learn.predict(new)[2])
    counted = quick(frame(60).rename(columns=dict(label='text_length')), label_col='text_length') # where the numbers of tokens stand
    assert counted.predict(frame(60)[['text']])[2].equal(counted.predict(frame(60).text)[2]) and counted.dls.vocab[1] == ['cold','warm']
    number = quick(frame(60).rename(columns=dict(text=0, label=1)), text_col=0, label_col=1)
    assert number.predict('red gold')[2].numel() == 2

def test_classes_as_integers_and_one_rare():
    df = frame(200)
    df['label'] = (df.label == 'warm').astype(int)
    df.loc[:1, 'label'] = 2                                              # one class with 1 %
    learn = quick(df)
    assert learn.predict('red red red red')[0] == 1 and len(learn.dls.vocab[1]) == 3

def test_several_labels_and_numbers():
    df = frame()
    df['text'] = [' '.join(t.split()[:2]*2) for t in df.text]
    df['label'] = [','.join(sorted({'warm' if w in words[:5] else 'cold' for w in t.split()})) for t in df.text]
    learn = quick(df, label_delim=',')
    red,teal = learn.predict(['red '*4,'teal '*4])[2]                       # of cold and warm
    assert red[0] < teal[0] and red[1] > teal[1]
    df['label'] = [words.index(t.split()[0]) + 0.5 for t in df.text]
    learn = quick(df)
    assert 'mse' in learn.report.results and isinstance(learn.predict('red red')[1].item(), float)

MORE = [f'a good plot {i}' for i in range(60)]

def rare(kind):
    "Forty texts with a label that one text has, which falls into the first fold; or all of them are of that kind"
    df = pd.DataFrame(dict(text=[f'good film {i}' if i%2 else f'bad plot {i}' for i in range(40)], label=['a;b' if i%2 else 'a' for i in range(40)]))
    if kind == 'each its own': return df.assign(label=range(40)), {}
    df.loc[39, 'label'] = 'zz' if kind == 'several' else '0'
    return df, dict(label_delim=';') if kind == 'several' else {}

@pytest.mark.parametrize('unlabelled', [None,MORE])
@pytest.mark.parametrize('kind,n', [('one',3), ('several',3), ('each its own',40)])
def test_labels_of_one_text(kind, n, unlabelled):
    "A learner knows the labels of all texts, those of the first fold alone, too"
    df,kw = rare(kind)
    learn = quick(df, unlabelled=unlabelled, **kw)
    assert len(learn.dls.vocab[1]) == learn.predict('a bad film')[2].numel() == n

@pytest.mark.parametrize('unlabelled', [None,MORE])
def test_no_label_is_lost_to_further_training(unlabelled):
    "Its loaders hold every labelled text to train on, whatever was held out, and none to test it"
    df = frame(60)
    learn = quick(df, unlabelled=unlabelled)
    assert sorted(learn.dls.vocab[1][int(y)] for _,y in learn.dls.train_ds) == sorted(df.label) and len(learn.dls.valid_ds) == 0
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    learn.count_wide()
    assert learn.predict('red gold')[2].isfinite().all()

@pytest.mark.parametrize('unlabelled', [None,MORE])
def test_a_column_for_each_label(unlabelled):
    "Columns of 0 and 1, in their order"
    df = frame().assign(warm=lambda d: [int('red' in t) for t in d.text], gold=lambda d: ['gold' in t for t in d.text])
    learn = quick(df, label_col=['warm','gold'], unlabelled=unlabelled)
    assert list(learn.dls.vocab[1]) == ['warm','gold'] and {*learn.predict('red red red red')[0]} <= {'warm','gold'}
    with learn.no_bar(): preds,targs = learn.get_preds(dl=learn.dls.test_dl(df, with_labels=True))
    assert targs.tolist() == df[['warm','gold']].astype(float).values.tolist() and ((preds > 0.5) == targs).float().mean() > 0.7
    r = learn.report.results
    assert r.accuracy[1] > 0.6 and r.returned.sum() == 1

def test_many_classes():
    df = pd.DataFrame(dict(text=[f'word{i%150} and word{i%7}' for i in range(600)], label=[f'c{i%150:03}' for i in range(600)]))
    learn = quick(df)
    assert len(learn.dls.vocab[1]) == 150

def test_one_word_texts():
    df = pd.DataFrame(dict(text=words*6, label=(['warm']*5+['cold']*5)*6))
    learn = quick(df)
    assert any('copies' in n for n in learn.report.notes)
    assert learn.predict('red')[0] == 'warm'

@pytest.mark.parametrize('df,error', [(frame(10), 'at least 20'), (frame().assign(label=None), 'label'), (frame().assign(text=1), 'text'), (frame().iloc[:0], '')])
def test_refuses(df, error):
    with pytest.raises((ValueError,TypeError), match=error): quick(df)

def test_copies_of_a_few(monkeypatch):
    "Folds need five texts that differ: fewer are refused before any work"
    def texts(n): return frame(40).assign(text=[words[i%n] for i in range(40)])
    assert quick(texts(5)).predict('red')[2].numel() == 2
    monkeypatch.setattr(best, 'choose_reading', None)
    for df,n in ((texts(1),1), (texts(2),2), (texts(4),4), (frame(40).assign(text=''),1), (frame(40).assign(text=[' '*i for i in range(40)]),1)):
        with pytest.raises(ValueError, match=f'40 labelled texts are copies of {n}, .*at least 5'): quick(df)

def test_minutes_and_columns():
    for bad in (0, float('inf')):
        with pytest.raises(ValueError, match='minutes'): best_classifier(frame(), minutes=bad)
    with pytest.raises(ValueError, match='label_col=.* names no column'): quick(frame(), label_col=[])
    with pytest.raises((ValueError,KeyError), match='lable'): best_classifier(frame(), label_col='lable')

def test_one_label_is_refused():
    "Texts that all have one label, as words and as numbers to predict"
    for o in ('warm', 0, 0.5):
        with pytest.raises(ValueError, match=f'{o}.*at least two'): quick(frame().assign(label=o))
    with pytest.raises(ValueError, match='label 0, 1: at least two'): quick(frame().assign(a=0, b=1), label_col=['a','b'])

def test_values_that_would_fail_late(tmp_path):
    (tmp_path/'f').write_text('')
    with pytest.raises(NotADirectoryError, match='is a file'): quick(frame(), folder=tmp_path/'f')
    with pytest.raises(NotADirectoryError, match='cannot write to the folder .*f/g: .*leave folder out'): quick(frame(), folder=tmp_path/'f'/'g')
    with pytest.raises(TypeError, match='seed=None'): quick(frame(), seed=None)

def test_no_folder_of_a_refused_call(tmp_path):
    with pytest.raises((ValueError,KeyError), match='text'): quick(frame().rename(columns=dict(text='tex')), folder=tmp_path/'new')
    assert not (tmp_path/'new').exists()

def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    "Said before training; where the disk is full afterwards the training is not lost, and what is kept is read from a folder that takes no more"
    def full(*args, **kw): raise OSError(28, 'no space')
    with monkeypatch.context() as m:
        m.setattr(best, 'choose_reading', lambda *args: pytest.fail('it trains'))
        m.setattr(best, 'TemporaryFile', full)
        with pytest.raises(OSError, match='cannot write to the folder .*new: no space. Give another'): quick(frame(), folder=tmp_path/'new')
    monkeypatch.setattr(best._Towers, 'plan', lambda self, s: 1)
    with monkeypatch.context() as m:
        m.setattr(best, 'save_tensors', full)
        with pytest.warns(UserWarning, match='is not kept.*no space'): learn = quick(frame(), folder=tmp_path/'new')
    assert 'transformer' in list(learn.report.results.candidate) and not any((tmp_path/'new').iterdir())
    quick(frame(), folder=tmp_path/'new')
    monkeypatch.setattr(best, 'TemporaryFile', full)
    assert 'transformer' in list(quick(frame(), folder=tmp_path/'new').report.results.candidate)

def test_two_rows_a_class():
    df = pd.DataFrame([dict(text=f'{w} {end}', label=w) for w in words*2 for end in ('one','two')]).drop_duplicates()
    assert df.label.value_counts().max() == 2 and len(quick(df).dls.vocab[1]) == len(words)

def test_copies_across_a_split_are_said():
    df = frame().assign(valid=lambda d: np.arange(len(d)) % 4 == 0)
    df.loc[0, 'text'] = df.loc[1, 'text']
    with pytest.warns(UserWarning, match='training set, too'): quick(df, valid_col='valid')

def test_stopped_by_hand(monkeypatch):
    "Ctrl-C in the first transformer: the counted words are returned"
    def stop(self, k, seconds, minutes=None): raise KeyboardInterrupt
    monkeypatch.setattr(best._Towers, 'train', stop)
    learn = quick(frame())
    assert learn.report.results.candidate[learn.report.results.returned].item().endswith('counted')
    assert learn.predict('red red red red red')[0] == 'warm'

def test_diverged(monkeypatch, capsys):
    "The transformer is left out with those that would follow, and that is said"
    def diverge(self, k, seconds, minutes=None): raise ValueError(best.DIVERGED)
    monkeypatch.setattr(best._Towers, 'train', diverge)
    learn = best_classifier(frame(60), minutes=0.02)
    assert 'diverged: it is left out, and no more are trained' in capsys.readouterr().out and 'transformer' not in list(learn.report.results.candidate)

def test_more_minutes_train_longer(tmp_path, monkeypatch):
    "A transformer that the clock has ended is taken for the same minutes alone"
    monkeypatch.setattr(best._Towers, 'plan', lambda self, s: 1)
    monkeypatch.setattr(best._Towers, 'seconds', lambda self: 10_000)
    def n_kept(minutes):
        quick(frame(), minutes, folder=tmp_path)
        return len(list(tmp_path.iterdir()))
    assert [n_kept(m) for m in (0.05,0.06,0.05)] == [1,2,2]

def test_kept_for_the_same_tokens_alone(tmp_path, monkeypatch):
    "Texts that are cut into other tokens, as after the package `tokenizers` was installed, have transformers of their own"
    monkeypatch.setattr(best._Towers, 'plan', lambda self, s: 1)
    for i in (0,1):
        monkeypatch.setattr(reading, '_preferred', lambda tried, *args, **kw: tried[i])
        learn = quick(frame(60), folder=tmp_path)
        assert len([*tmp_path.iterdir()]) == i+1 and learn.report.results.candidate[1] == ('words','pieces')[i] + ', counted'

@pytest.mark.parametrize('folds', [1,3])
def test_goes_on_where_it_was(tmp_path, monkeypatch, folds):
    "The same call with the same folder trains nothing twice, and does not measure again how long it takes"
    df = frame()
    monkeypatch.setattr(best._Towers, 'plan', lambda self, s: folds)
    first = quick(df, 5, folder=tmp_path)
    kept = list(tmp_path.iterdir())
    assert len(kept) == folds
    def fail(self, *args): raise AssertionError('trained or measured again')
    monkeypatch.setattr(best._Towers, 'learner', fail)
    again = quick(df, 5, folder=tmp_path)
    assert torch.equal(again.predict('red gold')[2], first.predict('red gold')[2])
    kept[0].write_bytes(kept[0].read_bytes()[:100])
    with pytest.raises(ValueError, match=kept[0].name): quick(df, folder=tmp_path)

def test_goes_on_with_unlabelled_texts(tmp_path, monkeypatch):
    "Vectors and the transformer that has read all texts are learnt once, for the same texts and minutes"
    df,more = frame(60), frame(320, seed=1).text
    first = quick(df, 0.1, unlabelled=more, folder=tmp_path)
    kept = {*tmp_path.iterdir()}
    assert len(kept) == 2
    def fail(*args, **kw): raise AssertionError('learnt again')
    with monkeypatch.context() as m:
        m.setattr(best, 'read_and_learn', fail)
        m.setattr(guesses.FeatureVectors, '_fit', fail)
        again = quick(df, 0.1, unlabelled=more, folder=tmp_path)
        assert torch.equal(again.predict('red gold')[2], first.predict('red gold')[2])
        cols = [c for c in again.report.results if c != 'minutes']
        assert again.report.results[cols].equals(first.report.results[cols])
        for other in (dict(minutes=0.11), dict(unlabelled=more[1:])):
            with pytest.raises(AssertionError, match='learnt again'): quick(df, **{**dict(minutes=0.1, unlabelled=more, folder=tmp_path), **other})
    file = min(kept)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=file.name): quick(df, 0.1, unlabelled=more, folder=tmp_path)

def test_broken_off_after_vectors(tmp_path, monkeypatch):
    "What was learnt before the call was broken off is kept, and the vectors of more texts than would be taken now"
    df,more = frame(60), frame(320, seed=1).text
    def fail(*args, **kw): raise RuntimeError('no power')
    with monkeypatch.context() as m:
        m.setattr(best, 'read_and_learn', fail)
        with pytest.raises(RuntimeError, match='no power'): quick(df, 0.1, unlabelled=more, folder=tmp_path)
    assert len([*tmp_path.iterdir()]) == 1
    monkeypatch.setattr(guesses.FeatureVectors, '_fit', fail)
    monkeypatch.setattr(guesses, '_per_token', 6*guesses._per_token)
    assert 'transformer' in list(quick(df, 0.1, unlabelled=more, folder=tmp_path).report.results.candidate)

@pytest.mark.parametrize('ahead', [True,False])
def test_transformer_beside_weighed_words(monkeypatch, ahead):
    "Where texts without labels weigh the words, these are read as words, and the transformer answers only if it is clearly better"
    monkeypatch.setattr(best, 'clearly_better', lambda *args: ahead)
    by_vectors = lambda text, ids, *args, **kw: text.but(by=guesses.Guesses(guesses.ByVectors(guesses.FeatureVectors(text.x, min_freq=1, passes=1), text.x, len(text.ids))))
    monkeypatch.setattr(best, 'learn_guesses', by_vectors)
    monkeypatch.setattr(best, 'with_guesses', lambda dls, ids, targets: dls)
    learn = quick(frame(60), unlabelled=frame(320, seed=1).text)
    r = learn.report.results.set_index('candidate')
    assert r.index[1] == 'words, counted in guesses, too' and r.returned['both' if ahead else r.index[1]]
    assert ahead or learn.model.wide.shares.tolist() == [0,1]

def test_words_first_beside_many_texts(monkeypatch):
    "Vectors know classes alone: beside classes, other ways to read have to be clearly better than words"
    asked,options = [], dict(text_col='text', label_col='label', label_delim=None)
    monkeypatch.setattr(reading, '_preferred', lambda tried, words: asked.append((len(tried), words)) or tried[0])
    numbers = frame(60).assign(label=lambda d: [words.index(t.split()[0]) + 0.5 for t in d.text])
    for df,many in ((numbers,True), (frame(60),True), (frame(60),False)): reading.choose_reading(df, options, 0, lambda what: None, 10, many)
    assert asked == [(4,False),(4,True),(4,False)]

def unspaced(n, seed):
    "Sentences without spaces, of a few of 40 characters; one of six pairs tells the class"
    rng,signs = np.random.default_rng(seed), [chr(0x4e00 + i) for i in range(52)]
    def text(l): return ''.join([*rng.choice(signs[12:], rng.integers(3, 9)), *np.reshape(signs[:12], (2,3,2))[l][rng.integers(3)], *rng.choice(signs[12:], rng.integers(3, 9))])
    return pd.DataFrame([dict(text=text(i%2), label=f'k{i%2}') for i in range(n)])

def test_many_texts_without_spaces():
    "Texts without labels do no harm where each sentence is one word"
    df,new = unspaced(100, 0), unspaced(200, 2)
    learn = quick(df, 0.1, unlabelled=unspaced(600, 1).text)
    assert learn.report.results.candidate[1].startswith('pieces')
    assert np.mean([a == b for a,b in zip(learn.predict(new.text.tolist())[0], new.label)]) > 0.85

def test_unlabelled_texts_are_read_first():
    df,more = frame(80), frame(200, seed=1).text
    learn = quick(df, unlabelled=more)
    assert 'transformer' in list(learn.report.results.candidate)

LETTERS = [[''.join(o) for o in kind] for kind in np.random.default_rng(0).choice([*'aeioudlmnrst'], (2,150,7))] # words of two kinds

def spread(n, seed):
    "Texts with a few of 150 words of their kind: labelled ones hold few of the words of the others"
    rng = np.random.default_rng(seed)
    return pd.DataFrame(dict(text=[' '.join([*rng.choice(LETTERS[i%2], 5), *rng.choice(['the','a','of','in'], 3)]) for i in range(n)], label=[f'k{i%2}' for i in range(n)]))

def test_guesses_where_texts_are_many(monkeypatch):
    "Five times as many texts without labels: vectors label them, and the transformer learns from these, too; no held-out label is seen"
    df,more,new = spread(30, 0), spread(800, 1).text, spread(200, 2)
    seen = []
    def spy(dls, ids, guesses):
        seen.append((dls, ids, guesses))
        return with_guesses(dls, ids, guesses)
    with_guesses = best.with_guesses
    monkeypatch.setattr(best, 'with_guesses', spy)
    learn = quick(df, 0.1, unlabelled=more)
    (dls,ids,guesses), = seen
    assert len(ids) == len(guesses) == 800 and len(dls.train_ds) == 20 and len(dls.valid_ds) == 10
    torch.testing.assert_close(guesses.sum(1), torch.ones(800))
    assert {*map(tuple, ids)} == {tuple(i.tolist()) for i in learn.codec.encode(more)}
    table = learn.report.results.set_index('candidate')
    assert 'transformer' in table.index and table.returned.sum() == 1
    def right(learn): return np.mean([a == b for a,b in zip(learn.predict(new.text.tolist())[0], new.label)])
    assert right(learn) > right(quick(df, 0.1)) + 0.03

def test_tokenized_once(monkeypatch):
    "No text without a label is cut twice"
    cut = []
    count = reading.LabelledText.loaders
    df,more = spread(60, 0), spread(320, 1).text
    monkeypatch.setattr(reading.LabelledText, 'loaders', lambda self, *args, **kw: cut.append(len(self.df)) or count(self, *args, **kw))
    read = best.read_loaders
    monkeypatch.setattr(best, 'read_loaders', lambda *args, **kw: cut.append('all') or read(*args, **kw))
    quick(df, unlabelled=more)
    assert cut.count('all') == 1 and set(cut) == {'all',60}

@pytest.mark.parametrize('unlabelled,error,match', [([], ValueError, 'unlabelled holds no text'), (['a film', float('nan')], TypeError, 'number 1 is nan'), ([1,2], TypeError, 'number 0 is 1'),
                                                    (pd.DataFrame(dict(txt=['a'])), ValueError, "no column 'text'")])
def test_unlabelled_texts_that_are_none(monkeypatch, unlabelled, error, match):
    "Refused before any work"
    def fail(*args): raise AssertionError('texts were read')
    monkeypatch.setattr(best, 'choose_reading', fail)
    with pytest.raises(error, match=match): quick(frame(60), unlabelled=unlabelled)

@pytest.mark.parametrize('kind', ['several','numbers'])
def test_unlabelled_texts_beside_other_targets(kind):
    "Vectors label classes alone: a language model reads, and that is all"
    df,kw = frame(60), {}
    if kind == 'several': df['label'],kw = [','.join(sorted({'warm' if w in words[:5] else 'cold' for w in t.split()[:2]})) for t in df.text], dict(label_delim=',')
    else: df['label'] = [words.index(t.split()[0]) + 0.5 for t in df.text]
    report = quick(df, unlabelled=frame(320, seed=1).text, **kw).report
    assert list(report.results.candidate)[1].endswith('counted') and 'transformer' in list(report.results.candidate)

def test_stopped_while_reading(monkeypatch):
    "Counted words answer alone"
    def stop(*args, **kw): raise KeyboardInterrupt
    monkeypatch.setattr(best, 'read_and_learn', stop)
    learn = quick(frame(60), unlabelled=frame(100, seed=1).text)
    assert 'transformer' not in list(learn.report.results.candidate) and learn.predict('red red red')[2].sum() == pytest.approx(1)

def test_diverged_while_reading(monkeypatch):
    def diverge(*args, **kw): raise ValueError(best.DIVERGED)
    monkeypatch.setattr(best, 'learn_guesses', diverge)
    assert 'transformer' not in list(quick(frame(60), unlabelled=frame(320, seed=1).text).report.results.candidate)

def test_folds_keep_copies_together():
    df = frame(100); df = pd.concat([df, df[:30]])
    fold = text_folds(df.text, df.label, 5)
    assert df.assign(fold=fold).groupby('text').fold.nunique().max() == 1
    for k in range(5): assert 0.3 < (df.label[fold==k] == 'warm').mean() < 0.7

def test_folds_keep_near_copies_together():
    "Copies with another case, more white space, or accents of two signs: remembering them is no accuracy"
    def near(t): return [t, t + ' ', t.replace(' ', '  ', 1), t.title(), unicodedata.normalize('NFD', t)]
    texts = [f'café {w} {v}' for w in words for v in words]
    fold = text_folds([o for t in texts for o in near(t)], [0]*500, 5)
    assert (fold.reshape(100, 5) == fold.reshape(100, 5)[:,:1]).all() and np.bincount(fold).tolist() == [100]*5
    df = pd.DataFrame(dict(text=near(texts[0]) + texts[1:30], label=['a','b']*17))
    assert check_rows(df, 'text', 'label', np.zeros(34, bool), None)[0].startswith('4 of 34 texts are copies')

def test_the_linear_model_is_as_free_as_serves():
    "The pair with the best score, and the first pair alone where there is no time"
    tried = []
    def score(pair): tried.append(pair); return -abs(pair[0]-3)-(pair[1] or 0)
    assert choose_strength(score, 60) == (3.,0.) and len(set(tried)) == 5
    tried.clear()
    assert choose_strength(score, 0) == (1.,1.) and tried == [(1.,1.)]

def test_a_choice_is_scored_on_texts_that_had_no_say_in_it():
    "Reading and strength of a fold are those that the other folds prefer, whatever is tried on it"
    df = frame(60)
    text = reading.choose_reading(df, dict(text_col='text', label_col='label', label_delim=None), 0, lambda what: None, 1e6)
    held = text.fold == 2
    def choice(t): return t.name, t.strength
    chosen = [choice(text.without(k)) for k in range(5)]
    assert text.without(2).chooser is None
    for t in text.chooser.args[0]:
        for strength,(out,rows) in t.tried.items():
            seen = held[rows]
            out[seen] = (2.*(strength == (3.,0.))-1)*F.one_hot(text.y[rows[seen]], 2)
    assert choice(text.without(2)) == chosen[2] != ('words', (3.,0.))
    assert all(text.without(k).strength == (3.,0.) for k in (0,1,3,4))
    rest = (~held).nonzero()[0]
    assert text.held_out([2])[0].equal(text.without(2).linear(rest, held.nonzero()[0]))

def test_shares_are_scored_on_texts_that_had_no_say_in_them():
    torch.manual_seed(0)
    y,deep,counted = torch.arange(40)%2, torch.randn(40, 2), torch.randn(40, 2)
    part = np.arange(40)%5
    out,mine = joined(deep, counted, y, 'category', part), torch.from_numpy(part == 1)
    a,b = choose_shares(deep[~mine], counted[~mine], y[~mine])
    assert out[mine].equal(a*deep[mine] + b*counted[mine])
    assert joined(deep, counted, torch.where(mine, 1-y, y), 'category', part)[mine].equal(out[mine])

def test_a_fold_of_copies_of_one_text():
    "Shares that suit the others need others: there are none, and a report all the same"
    df = pd.DataFrame([dict(text=f'{w} {words[-i]}', label='ab'[i%2], score=i+0.5) for i,w in enumerate(words[:8]) for _ in range(4)])
    for col in ('label','score'): assert quick(df, label_col=col).report.results.returned.sum() == 1

def test_one_text_in_most_rows():
    "The fold with all its copies leaves fewer texts to train on than a batch has"
    df = pd.DataFrame(dict(text=['']*20 + [f'{w} film' for w in words[:8]], label=[*'ab'*10, *'bc'*4]))
    assert min((text_folds(df.text, df.label) != k).sum() for k in range(5)) == 7
    learn = quick(df)
    assert 'transformer' in list(learn.report.results.candidate) and len(learn.dls.train_ds) == 28

def test_a_copy_is_what_it_is_asked_to_be():
    "No choice of another way overrules it; the quick one is quick in every fold"
    text = reading.choose_reading(frame(60), dict(text_col='text', label_col='label', label_delim=None), 0, lambda what: None, 1e6)
    weak = text.but(strength=(1e-6,0.))
    assert weak.without(0) is weak and not weak.held_out()[0].equal(text.held_out()[0])
    by = SimpleNamespace(by_vectors='vectors')
    slow = text.but(by=by, chooser=lambda aside: text.but(by=by))
    assert slow.quick().by == slow.quick().without(1).by == 'vectors'

@pytest.mark.slow
def test_random_labels_are_scored_as_such():
    "Half of them are right by chance, and the best of several ways is right more often on the texts that chose it; 40 draws"
    options,found = dict(text_col='text', label_col='label', label_delim=None), []
    for seed in range(40):
        df = frame(100, seed=seed).assign(label=np.random.default_rng(seed).permutation([*'ab']*50))
        text = reading.choose_reading(df, options, seed, lambda what: None, 1e6)
        found.append([t.right(*t.held_out()) for t in (text, text.but())])
    fair,chosen = np.array(found).T
    error = standard_error(fair)
    assert abs(fair.mean()-0.5) < 3*error and chosen.mean()-0.5 > 3*error

def test_letters_where_names_decide():
    "Names that never occur twice: their endings tell, in runs of letters"
    rng = np.random.default_rng(0)
    def name(end): return ''.join(rng.choice([*'abcdefghiklmnoprstu'], rng.integers(4, 8))) + end
    df = pd.DataFrame([dict(text=name(e), label=l) for e,l in [('escu','ro'),('sson','sv'),('enko','uk'),('ovic','sr')]*60])
    learn = quick(df)
    assert learn.report.results.candidate[1] == 'pieces and letters, counted' and learn.model.wide.letters is not None
    assert [learn.predict(t)[0] for t in ('Grigorescu','Andersson')] == ['ro','sv']

def test_runs_of_several_lengths(tmp_path):
    "Short runs in the middle of words tell; what is published, also as ONNX, answers as the learner does"
    rng = np.random.default_rng(0)
    def word(run):
        a,b = (''.join(rng.choice([*'abdfghiklmnprstu'], n)) for n in rng.integers(2, 6, 2))
        return a + run + b
    df = pd.DataFrame([dict(text=word(r), label=l) for r,l in [('qe','x'),('qo','y')]*80])
    learn = quick(df)
    assert learn.report.results.candidate[1] == 'pieces and runs of 3 to 5 letters, counted' and learn.model.wide.runs == (3,4,5)
    texts = ['a', 'é', '中文', 'baqeab', 'boqo beqe', 'b'*50]
    want = learn.predict(texts)[2]
    import fastai_txf.share.publish
    from fastai_txf.share.bundle import load_published
    learn.publish(tmp_path/'plain')
    torch.testing.assert_close(torch.as_tensor(load_published(tmp_path/'plain').probs(texts)), want, atol=1e-6, rtol=0)

@pytest.mark.slow
def test_runs_as_onnx(tmp_path):
    "Without torch, the same features and answers"
    for package in ('onnx','onnxscript','onnxruntime'): pytest.importorskip(package)
    import fastai_txf.share.publish
    from fastai_txf.share.onnx import OnnxPredictor
    from fastai_txf.share.to_onnx import to_onnx
    dls = TransformerDataLoaders.from_df(frame(), text_col='text', label_col='label', valid_pct=0.2, bs=8, num_workers=0)
    for letters in (True,5):
        learn = transformer_classifier_learner(dls, 'auto', wide_letters=letters)
        learn.count_wide()
        texts = ['a', 'é', '中文', 'warm film', 'b'*50]
        to_onnx(learn, tmp_path/str(letters), trained=True)
        torch.testing.assert_close(torch.as_tensor(OnnxPredictor(tmp_path/str(letters)).probs(texts)), learn.predict(texts)[2], atol=1e-4, rtol=0)

def test_words_are_cut_once(monkeypatch):
    "The words of fastai's tokenizer, and what was cut is known to all loaders that follow"
    df = frame(60).assign(text=lambda d: d.text + [f" It's 😀 No. {i}!" for i in range(60)])
    options = dict(text_col='text', label_col='label', label_delim=None)
    want = reading.LabelledText('words', df, {**options, 'min_freq':1}).count()
    text = reading._ways(df, options, 1000)[0].count()
    assert text.vocab == want.vocab and all(map(torch.equal, text.ids, want.ids)) and text.y.equal(want.y)
    assert text.fields == want.fields and (text.x != want.x).nnz == 0
    def refuse(*args): raise AssertionError('a text is cut again')
    monkeypatch.setattr(FastSpacyTokenizer, '_run', refuse)
    monkeypatch.setattr(FastSpacyTokenizer, '_stretch', refuse)
    monkeypatch.setattr(SpacyTokenizer, '__call__', refuse)
    dls = text.loaders(np.arange(60) % 4 == 0, bs=4)
    assert all(a.equal(torch.Tensor(b).long()) for a,b in zip(text.some(range(1, 4)), dls.train_ds.tls[0]))

def test_speeches_long_and_short():
    "A few telling words in texts of very different lengths: vectors of length 1, in the model as in the choice"
    rng = np.random.default_rng(1)
    def text(l): return ' '.join([*rng.choice(words, rng.integers(1, 60)), f'{l}{rng.integers(4)}'])
    df = pd.DataFrame([dict(text=text(l), label=l) for l in [*'abcd']*80])
    text = reading.choose_reading(df, dict(text_col='text', label_col='label', label_delim=None), 42, print, 60)
    text.fold,text.strength = text_folds(df.text, df.label, 5), (100.,None)
    held,rest = (text.fold == 0).nonzero()[0], (text.fold != 0).nonzero()[0]
    wide = count_features(text.wide(), text.some(rest), text.y[rest].numpy(), C=100., power=None)
    assert wide.by_length
    out = torch.cat([wide(text.ids[i][None]) for i in held])
    torch.testing.assert_close(out, text.linear(rest, held), atol=1e-4, rtol=1e-4)

def test_many_texts_are_cut_by_a_sample(monkeypatch):
    "How to cut is chosen with some of the texts; all of them are counted"
    seen,ways = [],reading._ways
    monkeypatch.setattr(reading, '_sample', 60)
    monkeypatch.setattr(reading, '_ways', lambda df, *args: seen.append(len(df)) or ways(df, *args))
    df = frame(200)
    learn = quick(df)
    assert seen == [60] and learn.report.curve.texts.max() > 60

def test_the_strength_is_that_of_the_held_out_texts(monkeypatch):
    "What counts in the learner is the linear model that was compared"
    monkeypatch.setattr(reading, 'choose_strength', lambda score, seconds: (3.,0.))
    df = frame()
    learn = quick(df)
    wide = learn.model.wide
    shares,table = wide.shares.tolist(), wide.table.clone()
    ids,y = learn.codec.encode(df.text.tolist()), np.array([[*learn.dls.vocab[1]].index(l) for l in df.label])
    count_features(wide, ids, y, C=3., share=shares, power=0.)
    torch.testing.assert_close(wide.table, table)
    count_features(wide, ids, y, share=shares)
    assert not torch.allclose(wide.table, table)

def test_random_state_is_left_alone():
    torch.manual_seed(7); a = torch.rand(3)
    torch.manual_seed(7); quick(frame()); b = torch.rand(3)
    assert torch.equal(a, b)

def test_seeds():
    "Any kind of whole number; one that no generator takes is refused, and the random states stay as they were"
    torch.manual_seed(7); np.random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    for bad in (-1, 2**32, np.int64(2**40)):
        with pytest.raises(ValueError, match='seed=.*from 0 to'): quick(frame(), seed=bad)
    a,b = (quick(frame(60), 2, seed=s).predict('red gold')[2] for s in (np.uint8(3),3)) # minutes enough for all that it tries
    assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), before[0]) and (np.random.get_state()[1] == before[1]).all()

def test_never_below_the_counted_words_beyond_chance():
    y = torch.tensor([0,1]*200)
    good = torch.nn.functional.one_hot(y).float()
    bad = good.clone(); bad[:100] = bad[:100].flip(1)
    assert clearly_better(good, bad, y, 'category') and not clearly_better(bad, good, y, 'category')
    assert choose_shares(bad, good, y)[1] > 0

def test_copies_are_no_surer():
    "Ten copies of each text give the interval of the texts themselves, and no lead that these do not give"
    rng = np.random.default_rng(0)
    hits = (rng.random(60) < 0.7).astype(float)
    one = interval(hits)
    np.testing.assert_allclose(interval(np.repeat(hits, 10), same=np.repeat(range(60), 10)), one)
    assert one[1]-one[0] > 2.5*np.ptp(interval(np.repeat(hits, 10)))
    y,a = torch.zeros(60, dtype=torch.long), torch.eye(2)[np.repeat([0,1,0], [3,2,55])]
    def lead(k, **kw): return clearly_better(torch.eye(2)[[0]*60*k], a.repeat_interleave(k, 0), y.repeat(k), 'category', **kw)
    assert not lead(1) and lead(10) and not lead(10, same=np.repeat(range(60), 10))

def test_interval_of_all_or_none():
    "Wilson's: few texts that are all right may hide errors; squared errors of 0 are no share"
    from scipy.stats import binomtest
    for k,n in ((30,30), (0,4)):
        want = binomtest(k, n).proportion_ci(method='wilson')
        np.testing.assert_allclose(interval(np.full(n, k/n)), (want.low,want.high), atol=1e-5)
    assert interval(np.ones(40), same=np.arange(40)%4) == interval(np.ones(4)) and interval(np.zeros(9), share=False) == (0,0)

@pytest.mark.parametrize('name,a,b,error,hope', [('accuracy',.6,.7,.02,'as much again'), ('accuracy',.45,.95,.02,'some of the 0.050 that are left'), ('accuracy',.6,.61,.02,'promise little'), ('accuracy',.7,.6,.02,'promise little'),
                                                 ('accuracy',.9,1.,.02,'promise little'), ('mse',9.,6.,1.,'as much again'), ('mse',9.,3.,1.,'some of the 3 that are left'), ('mse',9.,8.5,1.,'promise little')])
def test_more_labels_promise_what_there_is(name, a, b, error, hope):
    "No more than is left, and nothing for a gain within its standard error"
    curve = pd.DataFrame({'texts':[40,80], name:[a,b]})
    curve.attrs['gain_error'] = error
    assert hope in more_labels(curve, SimpleNamespace(is_number=name == 'mse', metric_name=name))

def test_error_of_the_last_gain():
    "As the curve's own texts give it; copies give the same"
    options = dict(text_col='text', label_col='label', label_delim=None)
    text = reading.choose_reading(frame(60), options, 0, lambda what: None, 0)
    curve = learning_curve(text)
    assert list(curve) == ['texts','accuracy'] and 0 < curve.attrs['gain_error'] < 0.15
    lead = np.random.default_rng(0).normal(size=50)
    assert standard_error(lead) == pytest.approx(lead.std()/50**0.5) == pytest.approx(standard_error(np.repeat(lead, 3), np.repeat(range(50), 3)))

def test_published_and_as_onnx(tmp_path):
    "Members and counted words leave as plain files, and answer the same"
    pytest.importorskip('safetensors')
    from fastai_txf.share.bundle import load_published
    import fastai_txf.share.publish
    df = frame(60)
    learn = quick(df)
    config = learn.model.config
    texts = ['red red gold', '', 'unknown thing 😀', ' '.join(words*50), 'xx ' * 300]
    want = learn.predict(texts)[2]
    learn.publish(tmp_path/'plain')
    torch.testing.assert_close(torch.as_tensor(load_published(tmp_path/'plain').probs(texts)), want, atol=1e-6, rtol=0)
    assert 'held out' in (tmp_path/'plain'/'README.md').read_text()
    pytest.importorskip('onnxruntime'); pytest.importorskip('onnxscript')
    from fastai_txf.share.onnx import OnnxPredictor
    from fastai_txf.share.to_onnx import to_onnx
    to_onnx(tmp_path/'plain', tmp_path/'graph')
    torch.testing.assert_close(torch.as_tensor(OnnxPredictor(tmp_path/'graph').probs(texts)), want, atol=1e-4, rtol=0)

def test_card_of_a_report(tmp_path):
    "It says of which texts its figures are; after further training it gives what that has measured"
    pytest.importorskip('safetensors')
    import fastai_txf.share.publish
    learn = quick(frame(60))
    def card(name, **kw): return (learn.publish(tmp_path/name, **kw)/'README.md').read_text().split('## Measured')[1].split('##')[0]
    assert 'Baselines on a validation set:' in card('c', baseline=pd.DataFrame([['counts', 0.5]], columns=['baseline','accuracy']))
    said = card('a')
    assert 'On training texts that were held out' in said and f'| accuracy, held out | {learn.report.measured()["accuracy, held out"]:.4f} |' in said
    assert 'epoch' not in said and 'validation set' not in said
    with learn.no_bar(), learn.no_logging(): learn.fit(2)
    said = card('b')
    assert 'After 2 epochs of the last training' in said and f'| train_loss | {learn.recorder.values[-1][0]:.4f} |' in said
    assert 'held out' not in said and 'validation set' not in said

def test_one_answer_is_ahead():
    "Where the same number, or class, for each text scores better than what is returned, the report says so"
    number,classes = SimpleNamespace(is_number=True, metric_name='mse'), SimpleNamespace(is_number=False, metric_name='accuracy')
    table = [dict(candidate='mean', mse=1., accuracy=0.6), dict(candidate='words, counted', mse=1.2, accuracy=0.5)]
    assert 'the mean for each text is ahead of what is returned (mse 1, not 1.2)' in no_better(table, 1, number)[0]
    assert 'accuracy 0.6, not 0.5' in no_better(table, 1, classes)[0]
    assert no_better(table[::-1], 1, number) == no_better(table[::-1], 1, classes) == []

def test_labels_that_no_score_speaks_of():
    target = SimpleNamespace(kind='category', n_out=3, names=['a','b','c'], is_number=False)
    assert unscored(torch.tensor([0,2,0]), target) == ["no held-out text has the label 'b': the scores do not speak of it"]
    assert unscored(torch.tensor([0,2,1]), target) == []
    assert "'a', 'c'" in unscored(torch.tensor([[0,1,0.],[0,1,0]]), target)[0]
    assert unscored(torch.tensor([1.]), SimpleNamespace(is_number=True)) == []
