"""What a user does with a learner, on the CPU and on the device of `pretend.py`: run with the name of a group of
scenarios and a folder, it prints what was not alike. The device belongs to the whole process."""
import json, pretend, random, sys, traceback, warnings
pretend.cuda()
import numpy as np, pandas as pd, torch
from collections import defaultdict
from functools import partial
from pathlib import Path
from fastai.text.all import Adam, Callback, accuracy, defaults, load_learner, set_seed
from fastai_txf.all import *
from fixtures import SMALL, make_dls, quiet, texts_df

df,root = texts_df(), Path(sys.argv[2])
text = 'the film was warm and lovely with music'
few = {**SMALL, 'drop_mult':0.}
groups = defaultdict(dict)

def scenario(group, tol=1e-3):
    "Add a function of a device to a group; `tol`: how far apart its two results may be"
    def _add(f):
        groups[group][f.__name__] = f,tol
        return f
    return _add

def dls_of(kind, device):
    if kind == 's2s':
        words = [''.join(random.Random(i).choices('abcdefg', k=3+i%5)) for i in range(60)]
        pairs = pd.DataFrame(dict(src=[' '.join(o) for o in words], tgt=[' '.join(o[::-1]) for o in words]))
        return Seq2SeqDataLoaders.from_df(pairs, seed=0, bs=8, device=device)
    return make_dls(df, device=device, **(dict(is_lm=True, seq_len=16) if kind == 'lm' else {}))

def made(kind, device, **kw):
    "A small learner"
    make = dict(clf=transformer_classifier_learner, lm=transformer_lm_learner, mlm=transformer_mlm_learner,
                s2s=transformer_seq2seq_learner)[kind]
    set_seed(1)
    learn = quiet(make(dls_of(kind, device), **{**few, 'path':root/device.type, **kw}))
    set_seed(2)
    return learn

def fitted(*args, n=1, cbs=None, **kw):
    learn = made(*args, **kw)
    learn.fit(n, 1e-3, cbs=cbs)
    assert all(p.device.type == args[1].type for p in learn.model.parameters())
    return learn

def ps(learn): return list(learn.model.parameters())

# ---- Classifiers

@scenario('classifier')
def clf(device):
    learn = fitted('clf', device, metrics=accuracy)
    return [learn.validate(), learn.get_preds(), learn.predict(text)[2], learn.predict([text,'dull'])]
@scenario('classifier')
def clf_explained(device):
    learn = fitted('clf', device)
    learn.show_results()
    learn.top_losses()
    learn.neighbours('dull')
    e = learn.explain(text)
    return [e.values, e.attributions, learn.attention(text).weights, str(learn.step_through(text))]
@scenario('classifier')
def clf_wide(device):
    learn = made('clf', device, wide=512, members=2)
    before = learn.predict(text)[2], learn.explain(text).values
    learn.count_wide()
    learn.fit(1, 1e-3)
    return [before, learn.get_preds(), learn.explain(text).values, ps(learn)]
@scenario('classifier')
def clf_windows(device):
    learn = fitted('clf', device, max_len=6)
    return [learn.get_preds(), learn.explain(text).values, learn.attention(text, window=1).weights]
@scenario('classifier', tol=0.03)
def clf_bf16(device):
    learn = made('clf', device, wide=128).to_bf16()
    learn.fit(1, 1e-3)
    return learn.validate()
@scenario('classifier')
def clf_from_encoder(device):
    fitted('lm', device).save_encoder('enc')
    learn = made('clf', device).load_encoder('enc')
    learn.fit_one_cycle(1, 1e-3)
    learn.fine_tune(1, 1e-3)
    return learn.get_preds()

# ---- Language models

@scenario('language model')
def lm(device):
    learn = fitted('lm', device)
    learn.show_results()
    learn.top_losses()
    return [learn.validate(), learn.get_preds()[1], learn.perplexity([text,'it was']),
            learn.attention(text).weights]
@scenario('language model')
def lm_before_a_fit(device):
    learn = made('lm', device)
    return [learn.predict('the film', n_words=4, temperature=0), learn.perplexity([text]),
            learn.attention(text).weights]
@scenario('language model')
def lm_written(device):
    learn = fitted('lm', device)
    write = partial(learn.predict, n_words=6)
    return [write('the film', temperature=0), write('the film', temperature=0, cache=False), write('the film', seed=3),
            write(['the film','it was in a'], seed=3), write('the film', num_beams=3),
            write('the film', seed=3, n_samples=3, top_k=5, top_p=.9, rep_penalty=1.2),
            ''.join(stream_text(learn, 'the film', n_words=4, seed=1))]
@scenario('language model')
def lm_ids(device):
    model,x = made('lm', device).model.to(device), torch.arange(9, 19).view(2, 5)
    uneven = [x[0], x[1,:3]]
    return [generate(model, x, 6, seed=torch.Generator(device).manual_seed(5)), token_logprobs(model, x),
            generate(model, uneven, 20, seed=4, n_samples=2, max_len=8),
            generate(model, uneven, 6, temperature=0, cache=False),
            generate(model, x, 5, barred=[9,10], stop_idx=[12], seed=1, min_tokens=2),
            beam_search(model, x[:1], 6, barred=[9], stop_idx=[12], min_tokens=2)]
@scenario('language model')
def lm_waits(device):
    "For a token the host waits once for the device, and a few times in a beam search"
    model,x = made('lm', device).model.to(device), torch.arange(9, 14)[None]
    if device.type == 'cpu': return
    for write,most in ((partial(generate, temperature=0),1), (partial(generate, seed=1),1), (beam_search,6)):
        pretend.watch()
        write(model, x, 50)
        pretend.watch(False)
        waits = {k:n for k,n in pretend.sites.items() if k[0] in ('wait','d2h')}
        assert sum(waits.values()) < 50*most + 10, waits
@scenario('language model')
def lm_modern(device):
    learn = fitted('lm', device, config='modern', bigrams=64)
    return [learn.validate(), learn.predict('the film', n_words=4, temperature=0)]
@scenario('language model', tol=0.03)
def lm_fp16(device):
    learn = made('lm', device).to_fp16()
    learn.fit(1, 1e-3, cbs=ChunkedLoss(chunk=20))
    return learn.validate()
@scenario('language model')
def lm_warmed_up(device): return fitted('lm', device, cbs=BatchWarmup(seq_len=8, bs=4), checkpoint=True).validate()

# ---- Masked models and pairs

@scenario('gaps and pairs')
def mlm(device):
    "Before a fit: what it masks is drawn on the device, after other draws than on the CPU"
    learn = made('mlm', device)
    res = [learn.validate(), learn.get_preds(), learn.attention(text).weights]
    learn.fit(1, 1e-3)
    learn.show_results()
    return [*res, len(learn.get_preds())]
@scenario('gaps and pairs')
def mlm_filled(device): return str(made('mlm', device).fill('the film ___ warm').token)
@scenario('gaps and pairs')
def s2s(device):
    learn = fitted('s2s', device)
    learn.show_results()
    return [learn.validate(), learn.attention('a b c'), str(learn.step_through('a b c'))]
@scenario('gaps and pairs')
def s2s_written(device):
    learn = fitted('s2s', device)
    return [learn.predict('a b c'), learn.predict(['a b c','d e f g'], num_beams=2),
            learn.predict(['a b c','d e'], seed=1, n_samples=2), ''.join(learn.stream_text('a b c'))]

# ---- Files

def _goes_on(kind, device, opt):
    "Weights and the optimizer's state of a file, in a learner that was never fitted"
    fitted(kind, device, opt_func=opt).save('half')
    learn = made(kind, device, opt_func=opt).load('half')
    learn.fit(1, 1e-3)
    res = learn.validate()
    if opt is not Adam: learn.dls.cpu()                     # fastai's own stays where it is
    learn.fit(1, 1e-3)
    return [res, learn.validate()]
@scenario('files')
def goes_on_with_muon(device): return _goes_on('lm', device, muon)
@scenario('files')
def goes_on_with_adamw(device): return _goes_on('clf', device, adamw)
@scenario('files')
def goes_on_with_plain_adam(device): return _goes_on('clf', device, partial(adamw, fused=False))
@scenario('files')
def goes_on_with_fastais_adam(device): return _goes_on('clf', device, Adam)
@scenario('files')
def exported(device):
    fitted('lm', device).export('a.pkl')
    learn,same = [load_learner(root/device.type/'a.pkl', cpu=cpu) for cpu in (True,False)]
    assert next(learn.model.parameters()).device.type == 'cpu'
    return [o.predict('the film', n_words=4, temperature=0) for o in (learn,same)]
class Stop(Callback):
    "Breaks the fit off at its batch number `at`"
    needs_logits = False
    def __init__(self, at=None): self._at,self._n = at,0
    def after_batch(self):
        self._n += self.training
        if self._n == self._at: raise KeyboardInterrupt
@scenario('files')
def resumed(device):
    def _run(name, at=None):
        learn = made(kind, device, drop_mult=1.)
        learn.fit_one_cycle(2, 1e-3, cbs=[ResumeCallback(name, every=1), Stop(at)])
        return learn
    for kind in ('lm','mlm'):
        whole = _run(f'{kind} whole')
        try: _run(f'{kind} broken', at=5)
        except KeyboardInterrupt: pass
        assert all(map(torch.equal, ps(whole), ps(_run(f'{kind} broken'))))
@scenario('files')
def published(device):
    res,asked = [], [('clf',text,{}), ('lm','the film',dict(n_words=4, seed=1)), ('mlm','the film ___ warm',{}),
                     ('s2s','a b c',{})]
    for kind,item,kw in asked:
        learn = made(kind, device, **(dict(wide=64) if kind == 'clf' else {}))
        if kind != 'mlm': learn.fit(1, 1e-3)
        model = load_published(learn.publish(root/f'{device.type}_{kind}', trained=True))
        for where in ('cpu',device):
            model.model.to(where)
            res += [getattr(model, 'fill' if kind == 'mlm' else 'predict')(item, **kw), model.encode(item)]
        if kind == 's2s': res += [model.predict(item, seed=1, n_samples=2), ''.join(model.stream(item))]
    return res

# ---- The comparison

def parts(o):
    "Numbers and texts of a result, one after the other"
    if isinstance(o, torch.Tensor): o = o.detach().cpu().float().numpy()
    if isinstance(o, str): return [o]
    if isinstance(o, (int,float,np.ndarray,np.generic)): return [np.asarray(o, dtype=float)]
    if isinstance(o, dict): o = o.values()
    return [p for v in o for p in parts(v)] if hasattr(o, '__iter__') else []

def apart(a, b, tol):
    "How two parts differ; '' if they do not"
    if isinstance(a, str): return '' if a == b else f'{a!r} and {b!r}'
    if a.shape != b.shape: return f'shapes {a.shape} and {b.shape}'
    return '' if np.allclose(a, b, atol=tol, rtol=tol, equal_nan=True) else f'by {np.nanmax(abs(a-b)):.2g}'

def differences(f, tol):
    "Where the device's result is not the CPU's"
    res = []
    for device in ('cpu','cuda:0'):
        defaults.use_cuda = None if device != 'cpu' else False
        set_seed(0)
        try: res.append(parts(f(torch.device(device))))
        except Exception as e:
            where = [f'{Path(o.filename).name}:{o.lineno}' for o in traceback.extract_tb(e.__traceback__)]
            return f'{device}: {type(e).__name__}: {str(e)[:300]} ({" ".join(where[-6:])})'
    if len(res[0]) != len(res[1]): return f'{len(res[0])} and {len(res[1])} parts'
    return '; '.join(f'part {i}: {d}' for i,o in enumerate(zip(*res)) if (d := apart(*o, tol)))

if __name__ == '__main__':
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    print(json.dumps({k:differences(*o) for k,o in groups[sys.argv[1]].items()}))
