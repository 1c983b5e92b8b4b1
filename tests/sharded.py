"Run by `torchrun` in two processes: what a learner can do while its weights are shared, and what it refuses"
import json, sys, torch
from pathlib import Path
from accelerate import FullyShardedDataParallelPlugin
from fastai.text.all import *
from torch.utils._pytree import tree_leaves, tree_map
from fastai_txf.all import *
from fastai_txf.train.distributed import *
from fixtures import SMALL, make_dls, quiet, texts_df

torch.set_num_threads(1)
df,path,rank = texts_df(40), Path(sys.argv[1]), rank_distrib()
plugin = partial(FullyShardedDataParallelPlugin, fsdp_version=2)
words = ['warm','clever','dull','cold','lovely','story','acting','filmic']*4

def make(kind='clf', **kw):
    "A small, quiet learner whose weights differ between the processes: those of the first count"
    set_seed(rank)
    if kind == 's2s':
        dls = Seq2SeqDataLoaders.from_df(pd.DataFrame(dict(a=words, b=[o[::-1] for o in words])), tok_tfm=CharTokenizer(), share_vocab=True, seed=0, bs=8)
    else: dls = make_dls(df, is_lm=kind == 'lm', **(dict(seq_len=16) if kind == 'lm' else {}))
    factory = dict(clf=transformer_classifier_learner, lm=transformer_lm_learner, s2s=transformer_seq2seq_learner)[kind]
    return quiet(factory(dls, path=path, **{**SMALL, **kw}))

def shared(learn, **kw): return learn.distrib_ctx(sync_bn=False, cpu=True, **{**dict(fsdp_plugin=plugin()), **kw})
def whole(t): return t.full_tensor() if hasattr(t, 'full_tensor') else t.detach().clone() if isinstance(t, torch.Tensor) else t
def state(learn):
    "Copies of all weights, and of all that the optimizer remembers"
    return tree_leaves(tree_map(whole, [list(learn.model.parameters()), learn.opt.state_dict()['state'] if learn.opt else []]))
def same(a, b): return len(a) == len(b) and all(p.equal(q) if isinstance(p, torch.Tensor) else p == q for p,q in zip(a, b))

def raises(typ, msg, f):
    "`f()` raises `typ` with `msg` in its words"
    try: f()
    except typ as e: assert msg in str(e), e
    else: raise AssertionError(f'no {typ.__name__}: {msg}')

def gradual(learn, cbs):
    learn.freeze()
    learn.fit(1, 5e-3, cbs=cbs)
    learn.unfreeze()
    learn.fit_one_cycle(1, slice(1e-3,5e-3), cbs=cbs)

def as_data_parallel():
    "Losses and weights of data-parallel training: Adam and frozen groups; torch's, bf16 and no logits; seq2seq, accumulated"
    fit = lambda learn, cbs: learn.fit_one_cycle(1, 5e-3, cbs=cbs)
    for kind,pre,train,cbs,kw in [('clf', noop, gradual, [GradientClip(0.1),SpareDecay()], dict(wd=0.1)),
                                  ('lm', lambda o: o.to_bf16(), fit, [ChunkedLoss(),SpareDecay()], dict(opt_func=adamw, checkpoint=True)),
                                  ('s2s', noop, fit, [GradientAccumulation(16)], dict(share_emb=True))]:
        res = []
        for options in (dict(), dict(fsdp_plugin=None)):
            learn = make(kind, **kw)
            pre(learn)
            with shared(learn, **options): train(learn, cbs)
            res.append([*map(float, learn.recorder.losses), *learn.model.parameters()])
            assert all(type(p) is torch.nn.Parameter and p.requires_grad for p in learn.model.parameters())
            assert kind == 'clf' or learn.model.head.weight is getattr(learn.model, 'decoder', learn.model.encoder).emb.weight
        assert len(res[0]) == len(res[1])
        for a,b in zip(*res): torch.testing.assert_close(a, b, atol=1e-5, rtol=0)

def files():
    "A file of the context is read there, moments included, and by a plain learner, and the other way round"
    for opt_func in (Adam, adamw):
        learn = make('lm', opt_func=opt_func)
        with shared(learn):
            learn.fit(1, 5e-3)
            before = state(learn)
            learn.save('shared')
            learn.fit(1, 5e-3)
            assert not same(state(learn), before)
            assert same(state(learn.load('shared')), before)
        learn = make('lm', opt_func=opt_func).load('shared')
        assert same(state(learn), before)
        if not rank: learn.save('plain')
        torch.distributed.barrier()
        learn = make('lm', opt_func=opt_func)
        with shared(learn): assert same(state(learn.load('plain')), before)

def best():
    "`SaveModelCallback` loads the best weights, not the last"
    class Spoil(Callback):
        def before_validate(self):
            if self.epoch == 1:
                with torch.no_grad():
                    for p in self.model.parameters(): p.mul_(-3)
    learn = make()
    with shared(learn): learn.fit(2, 5e-3, cbs=[Spoil(), SaveModelCallback(fname='best')])
    saved = torch.load(path/'models'/'best.pth', weights_only=True)
    assert same(list(saved.values()), list(learn.model.state_dict().values()))

def broken_off():
    "A fit that breaks off leaves the learner as it was; after a whole one, with the weights of that"
    class Boom(Callback):
        def after_pred(self):
            if self.training and self.train_iter == 1: raise OSError('boom')
    def fits(learn, n):
        with shared(learn):
            for _ in range(n): learn.fit(1)
            seen.append(learn.sharded_trainer.plain.head.weight.clone())
            learn.fit(1, cbs=Boom())
    for n in (0,1):
        learn,seen = make(), []
        learn.create_opt()
        opt,dls,loaders,model,before = learn.opt, learn.dls, list(learn.dls.loaders), learn.model, state(learn)
        raises(OSError, 'boom', lambda: fits(learn, n))
        assert learn.model is model and learn.dls is dls and learn.dls.loaders == loaders and not hasattr(learn, 'sharded_trainer')
        assert learn.opt is (None if n else opt) and same(state(learn), before) is (n == 0) and learn.model.head.weight.equal(seen[0])

def refused():
    "What needs the weights in another way than by whole passes"
    learn = make('lm')
    with shared(learn):
        for f in (lambda: learn.predict('warm', 3), lambda: learn.save_encoder('enc'), lambda: learn.model.encoder.load_state_dict({}), lambda: torch.save(learn, path/'learn.pkl')):
            raises(TypeError, 'do this after it', f)
        raises(TypeError, 'LRFinder', learn.lr_find)
        raises(TypeError, 'SampleText', lambda: learn.fit(1, cbs=SampleText('warm')))
        learn.fit(1, 1e-3)
        assert type(learn.opt.opt) is torch.optim.Adam # no process has a whole matrix for Muon
    learn.predict('warm', 3)
    opt = torch.optim.SGD(learn.model.parameters(), lr=0.1)
    for typ,msg,options,kw in [(TypeError, 'is no plugin', dict(fsdp_plugin=True), {}), (ValueError, 'fsdp_version=2', dict(fsdp_plugin=plugin(fsdp_version=1)), {}),
                               (ValueError, 'checkpoint=True', dict(fsdp_plugin=plugin(activation_checkpointing=True)), {}), (ValueError, 'cpu_offload', dict(fsdp_plugin=plugin(cpu_offload=True)), {}),
                               (ValueError, 'to_bf16', dict(fsdp_plugin=plugin(mixed_precision_policy='bf16')), {}), (TypeError, 'adamw', {}, dict(opt_func=OptimWrapper(opt=opt)))]:
        learn = make(**kw)
        raises(typ, msg, shared(learn, **options).__enter__)
        assert not hasattr(learn, 'sharded_trainer') and type(learn.model) is TransformerClassifier

def launched():
    "The launcher's variables shard too"
    os.environ.update(ACCELERATE_USE_FSDP='true', FSDP_VERSION='2')
    learn = make()
    with shared(learn, fsdp_plugin=None): assert isinstance(learn.sharded_trainer, ShardedTrainer)

done = []
for f in (as_data_parallel, files, best, broken_off, refused, launched):
    with warnings.catch_warnings(): f()
    done.append(f.__name__)
if not rank: print(json.dumps(done))
torch.distributed.destroy_process_group()
