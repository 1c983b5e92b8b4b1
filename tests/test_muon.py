"Muon: torch's own step, in fastai's learner."
import copy
import pytest
import torch
from functools import partial
from fastai.text.all import Callback, CrossEntropyLossFlat, Learner, load_learner, noop, pd, set_seed, trainable_params
from fastcore import test as t
from fastai_txf.all import *
from fastai_txf.base.compat import has_bf16
from fastai_txf.train.muon import hidden_matrices, MuonAdam, orthogonalize

TEXT = 'the cat sat on the mat while the rain fell on the roof of the old house . '*30

def dls(n=2250): return LMDataLoaders.from_texts([TEXT[:n]], [TEXT[:600]], tok_tfm=CharTokenizer(), starts=False, bs=4, seq_len=16)

def learner(loaders=None, **kwargs):
    set_seed(0)
    learn = transformer_lm_learner(loaders or dls(), d_model=32, n_layers=2, n_heads=2, **{'opt_func':muon, **kwargs})
    learn.logger = noop
    return learn.remove_cb(learn.progress)

def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])

def trained(learn, *args, fit='fit', **kwargs):
    set_seed(1)
    getattr(learn, fit)(*args, **kwargs)
    return weights(learn)

@pytest.mark.parametrize('shape', [(3,16,16), (2,48,16), (2,16,64), (1,5,3)])
def test_orthogonalize_is_the_polynomial_of_the_singular_values(shape):
    "In float64, against the decomposition."
    x = torch.randn(shape, dtype=torch.float64)
    u,s,vh = torch.linalg.svd(x, full_matrices=False)
    s = s/s.norm(dim=-1, keepdim=True)
    for _ in range(5): s = 3.4445*s - 4.775*s**3 + 2.0315*s**5
    t.test_close(orthogonalize(x), u@torch.diag_embed(s)@vh, eps=1e-10)

@pytest.mark.parametrize('rounds', [False, pytest.param(True, marks=pytest.mark.skipif(not has_bf16(), reason='a processor without units for bfloat16'))])
def test_fit_is_a_plain_loop_with_torchs_muon_and_adamw(rounds, monkeypatch):
    "A learner, against `torch.optim.Muon` and `torch.optim.AdamW` on the same batches; with and without the rounding to bfloat16 that torch's always does."
    if not rounds:
        monkeypatch.setattr('fastai_txf.train.muon.has_bf16', lambda: False)
        monkeypatch.setattr(torch.Tensor, 'bfloat16', torch.Tensor.clone)
    loaders = dls(400)
    learn = learner(loaders, splitter=trainable_params, p=0., emb_p=0.)
    model = copy.deepcopy(learn.model.double()) # one rounding to bfloat16 then seldom differs from the other
    mats = hidden_matrices(model)
    rest = [p for p in model.parameters() if all(p is not o for o in mats)]
    groups = [dict(params=[p for p in rest if p.ndim > 1]), dict(params=[p for p in rest if p.ndim < 2], weight_decay=0.)]
    opts = [torch.optim.Muon(mats, lr=1e-2, weight_decay=0.1, adjust_lr_fn='match_rms_adamw'),
            torch.optim.AdamW(groups, lr=1e-2, betas=(0.95,0.99), eps=1e-5, weight_decay=0.1)]
    batches = []
    class Keep(Callback):
        def before_batch(self): batches.append((self.x,self.y)) if self.training else None
    trained(learn, 1, 1e-2, wd=0.1, cbs=[Keep(),SpareDecay(embeddings=False)])
    model.train()
    for x,y in batches:
        CrossEntropyLossFlat()(model(x), y).backward()
        for opt in opts: opt.step(); opt.zero_grad()
    theirs = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert len(batches) > 4 and (weights(learner())-theirs).abs().max() > 0.05
    assert (weights(learn)-theirs).abs().max() < (1e-5 if rounds else 1e-10)

def test_do_wd_is_heeded():
    "With gradients of zero nothing but decay moves a matrix."
    learn = learner(wd=0.5)
    learn.create_opt()
    a,b = hidden_matrices(learn.model)[:2]
    learn.opt.state[a]['do_wd'] = False
    for p in learn.model.parameters(): p.grad = torch.zeros_like(p)
    learn.opt.set_hypers(lr=0.1, wd=0.5)
    old = a.detach().clone(), b.detach().clone()
    learn.opt.step()
    t.test_eq(a, old[0])
    t.test_close(b, old[1]*0.95, eps=1e-6)

def test_groups_freeze_and_have_rates_of_their_own():
    learn = learner()
    learn.freeze()
    old = {n:p.detach().clone() for n,p in learn.model.named_parameters()}
    trained(learn, 1, 1e-2)
    moved = {n for n,p in learn.model.named_parameters() if not torch.equal(p, old[n])}
    assert moved and not any('blocks' in n for n in moved)
    learn.unfreeze()
    trained(learn, 1, slice(1e-4, 1e-2))
    rates = [h['lr'] for h in learn.opt.hypers]
    assert len(rates) > 1
    t.test_close([rates[0],rates[-1]], [1e-4,1e-2], eps=1e-8)
    assert all(not torch.equal(p, old[n]) for n,p in learn.model.named_parameters())

def test_a_step_has_the_rate_of_each_group():
    "As long in each group as with one rate, that of the group, for all"
    def moved(lr):
        learn = learner()
        learn.create_opt()
        for i,p in enumerate(learn.model.parameters()): p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
        learn.opt.set_hypers(lr=lr, wd=0.1)
        learn.opt.step()
        return [[p.detach() for p in ps] for ps in learn.opt.param_lists]
    n = len(moved(0.))
    lrs = [1e-3*2**i for i in range(n)]
    ours = moved(lrs)
    assert n > 1 and any(p.ndim > 1 for p in ours[0])
    for i,lr in enumerate(lrs):
        assert all(torch.equal(a, b) for a,b in zip(ours[i], moved(lr)[i])) and not all(torch.equal(a, b) for a,b in zip(ours[i], moved(2*lr)[i]))

def test_schedules_of_rate_and_momentum_reach_it():
    learn = learner()
    trained(learn, 1, 1e-2, fit='fit_one_cycle')
    t.test_eq(learn.opt.hypers[0]['mom'], learn.opt.opt.param_groups[0]['betas'][0])
    assert {'lr','mom'} <= learn.recorder.hps.keys()
    assert max(learn.recorder.hps['mom']) > 0.94 and min(learn.recorder.hps['mom']) < 0.86

def test_lr_find_leaves_everything_as_it_was():
    learn = learner()
    old = weights(learn)
    learn.lr_find(num_it=20, show_plot=False)
    t.test_eq(weights(learn), old)

def test_a_saved_training_goes_on_to_the_bit(tmp_path):
    whole = learner(path=tmp_path)
    trained(whole, 1, 1e-2)
    whole.save('half')
    there = trained(whole, 1, 1e-2, reset_opt=False)
    other = learner(path=tmp_path)
    other.create_opt()
    other.load('half')
    t.test_eq(trained(other, 1, 1e-2), there)

def test_a_killed_training_goes_on_to_the_bit(tmp_path):
    class Kill(Callback):
        now = False
        def after_batch(self):
            if Kill.now and self.training and self.train_iter == 20: raise KeyboardInterrupt
    def run(): return trained(learner(path=tmp_path), 2, 1e-2, fit='fit_one_cycle', cbs=[ResumeCallback('r', every=7),Kill()])
    there = run()
    Kill.now = True
    with pytest.raises(KeyboardInterrupt): run()
    Kill.now = False
    assert (tmp_path/'models'/'r.pth').exists()
    t.test_eq(run(), there)

def test_the_state_of_another_optimizer_is_refused(tmp_path):
    learn = learner(path=tmp_path, opt_func=adamw)
    trained(learn, 1, 1e-2)
    learn.save('adam')
    other = learner(path=tmp_path)
    other.create_opt()
    state = torch.load(tmp_path/'models'/'adam.pth', weights_only=False)['opt']
    with pytest.raises(ValueError, match='another optimizer'): other.opt.load_state_dict(state)
    trained(other, 1, 1e-2)
    other.save('muon')
    state = torch.load(tmp_path/'models'/'muon.pth', weights_only=False)['opt']
    with pytest.raises(ValueError, match='another optimizer'): learn.opt.load_state_dict(state)

def test_an_exported_learner_comes_back(tmp_path):
    learn = learner(path=tmp_path)
    trained(learn, 1, 1e-2)
    learn.export('m.pkl')
    t.test_close(weights(load_learner(tmp_path/'m.pkl')), weights(learn), eps=1e-8)

def test_a_plain_learner_must_name_the_model():
    learn = Learner(dls(), TransformerLM(vocab_sz=30, d_model=8, n_heads=2), CrossEntropyLossFlat(), opt_func=muon)
    with pytest.raises(ValueError, match='partial'): learn.create_opt()
    learn.opt_func = partial(muon, model=learn.model)
    learn.create_opt()
    assert isinstance(learn.opt.opt, MuonAdam)

def test_maps_of_each_head_are_matrices_too():
    "`mode='narrow'` has four-dimensional weights."
    set_seed(0)
    model = TransformerLM(vocab_sz=9, d_model=16, n_heads=2, n_layers=1, mode='narrow')
    w = next(p for p in hidden_matrices(model) if p.ndim == 4)
    opt = muon(list(model.parameters()), 1e-2, wd=0., model=model)
    w.grad,old = torch.randn_like(w), w.detach().clone()
    opt.step()
    one = orthogonalize((w.grad*(0.05*0.95+0.05)).flatten(0, 1)).view_as(w)
    t.test_close((old-w)/(1e-2*0.2*8**0.5), one, eps=2e-2)

def test_a_copy_of_a_learner_trains_as_it_does():
    learn = learner()
    trained(learn, 1, 1e-2)
    other = copy.deepcopy(learn)
    t.test_eq(trained(other, 1, 1e-2, reset_opt=False), trained(learn, 1, 1e-2, reset_opt=False))

def test_shares_of_weights_are_refused():
    class Share(torch.nn.Parameter): pass
    w = Share(torch.randn(4, 4))
    with pytest.raises(TypeError, match='opt_func=adamw'): MuonAdam([w], [w])

def test_a_model_that_is_given_stays():
    learn = learner()
    mats = hidden_matrices(learn.model)[:1]
    learn.opt_func = partial(muon, model=torch.nn.ModuleList([torch.nn.Embedding(3, 3), torch.nn.Linear(2, 2)]))
    learn.create_opt()
    assert mats[0] not in learn.opt.opt.matrices and not learn.opt.opt.matrices

def test_it_bears_rates_that_adam_does_not(recwarn):
    "Width 32: Adam is warned of beyond 2.4e-2, muon beyond 6e-2."
    trained(learner(), 1, 5e-2)
    assert not any('far beyond' in str(w.message) for w in recwarn)
    trained(learner(opt_func=adamw), 1, 5e-2)
    assert any('far beyond' in str(w.message) for w in recwarn)

def optimizer(learn):
    learn.create_opt()
    return type(learn.opt.opt)

def test_what_a_language_model_takes_by_itself():
    "Nothing asked: `modern`, Muon, a rate for its width. A given field, preset, optimizer or rate wins."
    plain,sized = transformer_lm_learner(dls()),transformer_lm_learner(dls(), d_model=256)
    assert plain.model.config.qk_norm and plain.model.config.p == 0 and plain.lr == 0.01
    assert not sized.model.config.qk_norm and sized.model.config.p == 0.1 and sized.lr == 0.005
    assert optimizer(plain) is optimizer(sized) is MuonAdam
    other = transformer_lm_learner(dls(), 'gpt2', opt_func=adamw)
    assert other.model.config.positions == 'learned' and other.lr == 1e-3 and optimizer(other) is torch.optim.Adam
    assert transformer_lm_learner(dls(), lr=2e-3).lr == 2e-3
    assert transformer_lm_learner(dls(), drop_mult=0.5).model.config.p == 0.05

class Own(TransformerBlock): pass

@pytest.mark.parametrize('kw', [dict(block=Own), dict(arch=partial(TransformerLM))])
def test_parts_of_ones_own_take_adam(kw):
    learn = transformer_lm_learner(dls(), d_model=16, n_heads=2, **kw)
    assert optimizer(learn) is torch.optim.Adam and learn.lr == 1e-3

def test_what_is_pretrained_takes_adam_and_its_own_shape(tmp_path):
    lm = transformer_lm_learner(dls(), path=tmp_path)
    lm.save_encoder('enc')
    other = transformer_lm_learner(dls(), pretrained='enc', path=tmp_path)
    assert optimizer(other) is torch.optim.Adam and other.model.config.qk_norm and other.lr == 1e-3

def test_plain_encoder_into_plain_classifier(tmp_path):
    "From one factory to the other with nothing asked of either; with the same fields, too."
    df = pd.DataFrame(dict(text=['a warm and clever film', 'a cold and dull one']*12, label=['pos','neg']*12, valid=([False]*4+[True]*2)*4))
    kw = dict(text_col='text', valid_col='valid', num_workers=0, n_workers=0)
    dls_lm,dls_clf = (TransformerDataLoaders.from_df(df, bs=4, **kw, **o) for o in (dict(is_lm=True, seq_len=8), dict(label_col='label')))
    for fields in ({}, dict(d_model=32, n_layers=1)):
        lm = transformer_lm_learner(dls_lm, path=tmp_path, **fields)
        lm.save_encoder('enc')
        learn = transformer_classifier_learner(dls_clf, path=tmp_path, **fields).load_encoder('enc')
        assert learn.model.config.qk_norm == (not fields)
        assert learn.model.encoder.blocks[0].attn.fn.qkv.weight.equal(lm.model.encoder.blocks[0].attn.fn.qkv.weight)
