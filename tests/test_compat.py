"Canaries: every private name of torch and fastai that `base.compat` uses. The first word of a failure's message is what broke"
import inspect, subprocess, sys
from functools import partial
from copy import deepcopy
from pathlib import Path
import fastai, numpy as np, pandas as pd, pytest, torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode
from fastai.callback.schedule import LRFinder
from fastai.text.all import Callback, CrossEntropyLossFlat, DataLoader, DataLoaders, Learner, MSELossFlat
from fastai_txf.base import compat

HERE = f'(torch {torch.__version__}, fastai {fastai.__version__})'

def exists(owner, *names):
    "The private names are still there"
    for n in names:
        assert hasattr(owner, n), f'{getattr(owner, "__name__", owner)}.{n} is gone {HERE}: mend base.compat'

def line_learner(**kw):
    x = torch.randn(32, 4)
    dl = DataLoader(list(zip(x, x.sum(1, keepdim=True))), bs=8)
    learn = Learner(DataLoaders(dl, dl), nn.Linear(4, 1), MSELossFlat(), **kw)
    learn.remove_cb(learn.progress)
    learn.logger = lambda *args: None
    return learn

# fastai

def test_join_texts():
    "fastai.text.core._join_texts"
    import fastai.text.core as core
    exists(core, '_join_texts')
    df = pd.DataFrame(dict(a=['x','u'], b=['y','v']))
    assert compat.join_texts(df, True).tolist() == ['xxfld 1 x xxfld 2 y','xxfld 1 u xxfld 2 v']
    assert compat.join_texts(df[['a']], False).tolist() == ['x','u']

def test_validation_loop():
    "Learner._do_epoch_validate: its events, in this order, and the loader that is given"
    exists(Learner, '_do_epoch_validate')
    seen = []
    class Watch(Callback):
        def before_validate(self): seen.append('before')
        def after_batch(self): seen.append(len(self.xb[0]))
        def after_validate(self): seen.append('after')
    learn = line_learner(cbs=Watch())
    with learn.validation_context(): compat.validation_loop(learn, learn.dls.valid.new(bs=16))
    assert seen == ['before',16,16,'after']

def test_apply_gradients():
    "Learner._do_grad_opt: backward pass, step, gradients of zero, with their events"
    exists(Learner, '_do_grad_opt')
    seen,learn = [], line_learner()
    class Watch(Callback):
        def __call__(self, name): seen.append(name)
    learn.create_opt()
    learn.add_cb(Watch())
    w = learn.model.weight.detach().clone()
    learn.loss_grad = learn.model(torch.ones(1, 4)).sum()
    compat.apply_gradients(learn)
    assert seen == ['before_backward','after_backward','before_step','after_step']
    assert not learn.model.weight.equal(w) and not learn.model.weight.grad.any()

def test_step():
    "Learner._do_one_batch: `StepLearner` and `ChunkedLoss` go through the events of this step; a new one would be missed"
    want = ['self.pred = self.model(*self.xb)', "self('after_pred')", 'if len(self.yb):',
            'self.loss_grad = self.loss_func(self.pred, *self.yb)',
            'self.loss = self.loss_grad.clone()', "self('after_loss')",
            'if not self.training or not len(self.yb): return', 'self._do_grad_opt()']
    assert compat.is_fastais_step(Learner)
    class Mine(Learner):
        def _do_one_batch(self): pass
    assert not compat.is_fastais_step(Mine)
    lines = inspect.getsource(Learner._do_one_batch).split('\n')[1:]
    assert [l.strip() for l in lines if l.strip()] == want, f'the step of fastai has changed {HERE}'

def test_kinds_of_fits():
    "Learner.lock: held in `before_fit` of a validation or a prediction, free in that of a fit and of `lr_find`"
    seen = []
    class Watch(Callback):
        def before_fit(self): seen.append((compat.is_fit(self.learn), compat.is_search(self.learn)))
    learn = line_learner(cbs=Watch())
    exists(learn, 'lock')
    learn.validate(); learn.get_preds()
    assert seen == [(False,False)]*2
    learn.fit(1); learn.lr_find(num_it=6, show_plot=False)
    class Finder(LRFinder): "A search by another name"
    learn.fit(2, cbs=Finder(num_it=6))
    assert seen[2:] == [(True,False),(True,True),(True,True)]
    assert compat.is_search(learn, [Finder()]) and not compat.is_search(learn)

def test_loader_wrap():
    "DistributedTrainer._wrap_dl: what the trainer wraps loaders with, called with itself and a loader"
    pytest.importorskip('accelerate')
    from fastai.distributed import DistributedTrainer
    exists(DistributedTrainer, '_wrap_dl')
    assert '_wrap_dl' in inspect.getsource(DistributedTrainer.before_fit)
    class Trainer(DistributedTrainer): pass
    compat.set_loader_wrap(Trainer, lambda trainer, dl: (trainer.name,dl))
    trainer = Trainer.__new__(Trainer)
    assert trainer._wrap_dl(3) == ('trainer',3)

# Modules of torch

def test_parts():
    "Module._modules: the dictionary that `module.part` looks into"
    m = nn.Sequential(nn.Linear(2, 2))
    exists(m, '_modules')
    compat.parts_of(m)['0'] = other = nn.Linear(2, 3)
    assert m[0] is other and m(torch.ones(1, 2)).shape == (1,3)

HOOKING = dict(forward=lambda m, f: m.register_forward_hook(f),
               forward_pre=lambda m, f: m.register_forward_pre_hook(f),
               kwargs=lambda m, f: m.register_forward_hook(f, with_kwargs=True, always_call=True),
               backward=lambda m, f: m.register_full_backward_hook(f),
               backward_pre=lambda m, f: m.register_full_backward_pre_hook(f))
each_hook = pytest.mark.parametrize('hook', HOOKING.values(), ids=HOOKING)

@each_hook
def test_hooks(hook):
    "Module._forward_hooks and their kind: every way to listen is seen, and lies in a dictionary of `HOOKS`"
    m = nn.Sequential(nn.Linear(2, 2))
    assert not compat.is_hooked(m[0]) and not compat.any_hooked(m)
    handle = hook(m[0], lambda *args: None)
    assert compat.is_hooked(m[0]) and not compat.is_hooked(m) and compat.any_hooked(m)
    assert any(vars(m[0])[k] for k in compat.HOOKS)
    handle.remove()
    assert not compat.any_hooked(m)

def test_hooks_on_all():
    "nn.modules.module._has_any_global_hook: what listens to all modules is seen by `compat.listens_to_all`"
    for add in (nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook,
                nn.modules.module.register_module_full_backward_hook):
        assert not compat.listens_to_all()
        handle = add(lambda *args: None)
        try: assert compat.listens_to_all()
        finally: handle.remove()
    assert not compat.listens_to_all()

def test_hook_names():
    "nn.Module's dictionaries of hooks: one with another name would be shared with a shadow"
    named = {k for k,v in vars(nn.Module()).items() if isinstance(v, dict) and 'hook' in k}
    assert named == {*compat.HOOKS}, f'{named ^ {*compat.HOOKS}} {HERE}'

@each_hook
def test_copy_shell(hook):
    "nn.Module's own dictionaries: a copy has the weights and no more of the original that could be changed"
    m = nn.Linear(2, 2)
    m.register_buffer('b', torch.ones(2), persistent=False)
    new,x = compat.copy_shell(m, {}), torch.ones(1, 2)
    assert new(x).equal(m(x)) and new.weight is m.weight and new.b is m.b
    assert m.training and not new.training and {*new.state_dict()} == {*m.state_dict()}
    hook(new, lambda *args: None)
    new.weight = nn.Parameter(torch.zeros(2, 2))
    assert not compat.is_hooked(m) and m.weight.any()
    assert compat.copy_shell(m, {}, follow=True)._parameters is m._parameters
    for follow in (False,True):
        new = compat.copy_shell(m, {}, follow, frozen=True)
        assert not new.weight.requires_grad and new.weight.data_ptr() == m.weight.data_ptr() and m.weight.requires_grad

def test_module_attributes():
    "nn.Module.__init__: a new dictionary of its own would be shared between a module and its shadow"
    known = {'training','_parameters','_buffers','_non_persistent_buffers_set','_is_full_backward_hook',
             '_modules', *compat.HOOKS}
    assert vars(nn.Module()).keys() <= known, f'{vars(nn.Module()).keys() - known} {HERE}'

# The compiler of torch

def test_compiled_call():
    "Module._compiled_call_impl: is called in place of `forward`, and copies and names of weights leave it out"
    m,x = nn.Linear(2, 2), torch.ones(1, 2)
    exists(m, '_compiled_call_impl', '_call_impl')
    want = m(x)
    compat.set_compiled_call(m, lambda x: 'compiled')
    assert m(x) == 'compiled' and compat.call_plain(m, x).equal(want)
    assert deepcopy(m)(x).equal(want) and compat.copy_shell(m, {})(x).equal(want)
    assert {*m.state_dict()} == {'weight','bias'}

def test_compile_errors():
    "torch._dynamo.exc: what `fullgraph=True` raises for a part that cannot be compiled"
    errors = compat.compile_errors()
    assert all(issubclass(e, Exception) for e in errors)
    @torch.compile(backend='eager', fullgraph=True)
    def prints(x):
        torch._dynamo.graph_break()
        return x+1
    with pytest.raises(errors): prints(torch.ones(2))
    torch._dynamo.reset()

def test_compile_reason():
    "torch._inductor.exc.InvalidCxxCompiler: its name and what it says, which the remedy goes by"
    from torch._inductor.exc import InvalidCxxCompiler
    said = compat.compile_reason(InvalidCxxCompiler())
    assert 'compiler' in said.lower() and (('CXX)' in said) == ('CxxCompiler' in str(InvalidCxxCompiler())))
    assert compat.compile_reason(RuntimeError('InvalidCxxCompiler: No working C++ compiler')).endswith('CXX)')
    assert compat.compile_reason(RuntimeError('a  reason\nand more\nand much more')) == 'a reason and more'

def test_count_graphs():
    "torch._dynamo.utils.counters: grows by one with each graph that is made, not with its calls"
    torch._dynamo.reset()
    f,before = torch.compile(lambda x: x.sin(), backend='eager'), compat.count_graphs()
    for _ in range(2): f(torch.ones(3))
    assert compat.count_graphs() == before+1, f'counters of torch._dynamo {HERE}'
    torch._dynamo.reset()

@pytest.mark.slow
def test_compile_package(tmp_path):
    "torch._inductor.aoti_compile_and_package: tensors in, tensors out"
    class Twice(nn.Module):
        def forward(self, x): return (2*x,)
    program = torch.export.export(Twice(), (torch.ones(3),))
    out = compat.compile_package(program, tmp_path/'step.pt2')([torch.ones(3)])
    assert out[0].tolist() == [2.,2.,2.]

def test_as_plain_tensors():
    "torch._C.DisableTorchFunctionSubclass: results are plain tensors, also those of a class that marks its own"
    exists(torch._C, 'DisableTorchFunctionSubclass')
    class Marked(torch.Tensor): pass
    x = torch.ones(2).as_subclass(Marked)
    assert type(x+1) is Marked
    with compat.as_plain_tensors(): assert type(x+1) is torch.Tensor
    assert type(x+1) is Marked

def test_set_device():
    "Learner._set_device: called with a batch, gives the batch where the model is"
    exists(Learner, '_set_device')
    assert 'b = self._set_device(b)' in inspect.getsource(Learner.one_batch)

def test_decay_all():
    "torch._foreach_mul_: in place, every tensor"
    exists(torch, '_foreach_mul_')
    ps = [torch.ones(2), torch.full((3,), 2.)]
    compat.decay_all(ps, 0.5)
    assert [p.tolist() for p in ps] == [[0.5]*2, [1.]*3]

def test_tree_map():
    "torch.utils._pytree.tree_map: through dictionaries, lists and tuples"
    assert compat.tree_map(lambda o: o+1, dict(a=[1,(2,)], b=3)) == dict(a=[2,(3,)], b=4)

# Several processes

class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body,self.head = nn.Linear(3, 3), nn.Linear(3, 2)
    def hidden(self, x): return self.body(x)
    def forward(self, x): return self.head(self.hidden(x))

def test_own_hooks():
    "Hooks count, those of a model whose weights are split between processes do not"
    m = nn.Linear(2, 2)
    assert not compat.has_own_hooks(m)
    m.register_forward_hook(lambda *_: None)
    assert compat.has_own_hooks(m)
    m.run_whole = lambda f, *args: f(*args)
    assert not compat.has_own_hooks(m)

def test_call_whole_alone():
    "Without any wrapper: the function; a `DataParallel` would not split its inputs"
    m,x = Toy(), torch.ones(1, 3)
    assert compat.call_whole(m, m.hidden, x).equal(m.hidden(x))
    with pytest.raises(TypeError, match='distrib_ctx'): compat.call_whole(nn.DataParallel(m), m.hidden, x)

DDP = '''
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from test_compat import Toy, compat
dist.init_process_group('gloo')
torch.manual_seed(0)
for unused in (False,True):
    plain = Toy()
    model = DistributedDataParallel(Toy(), find_unused_parameters=unused)
    model.module.load_state_dict(plain.state_dict())
    for _ in range(2):
        x = torch.arange(6.).view(2, 3)
        def loss(x): return plain.head(plain.hidden(x)).square().mean()
        def shared(x): return model.module.head(model.module.hidden(x)).square().mean()
        plain.zero_grad(); model.zero_grad()
        loss(x).backward()
        compat.call_whole(model, shared, x[dist.get_rank():][:1]).backward()
        for p,q in zip(plain.parameters(), model.parameters()): torch.testing.assert_close(p.grad, q.grad)
dist.destroy_process_group()
'''

def test_call_whole_in_two_processes(tmp_path):
    "DistributedDataParallel._pre_forward, ._post_forward, ._inside_ddp_forward: gradients are shared"
    exists(nn.parallel.DistributedDataParallel, '_pre_forward', '_post_forward', '_inside_ddp_forward')
    (tmp_path/'ddp.py').write_text(DDP)
    root = Path(__file__).parents[1]
    env = {'PATH':'', 'OMP_NUM_THREADS':'1', 'CUDA_VISIBLE_DEVICES':'', 'PYTHONPATH':f'{root}:{root}/tests'}
    cmd = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', str(tmp_path/'ddp.py')]
    res = subprocess.run(cmd, env=env, capture_output=True, text=True)
    assert res.returncode == 0, res.stderr[-3000:]

def test_show_error_as():
    "IPython asks an error for `_render_traceback_` before it renders one"
    shell = pytest.importorskip('IPython.core.interactiveshell')
    assert "_render_traceback_()" in inspect.getsource(shell.InteractiveShell.showtraceback)
    e = ValueError()
    compat.show_error_as(e, lambda: ['told'])
    assert e._render_traceback_() == ['told']

def test_blend_all():
    "torch._foreach_lerp_: many tensors in one call, in place"
    exists(torch, '_foreach_lerp_')
    ts = [torch.zeros(3), torch.ones(2,2)]
    compat.blend_all(ts, [torch.ones(3), torch.zeros(2,2)], 0.25)
    assert ts[0].tolist() == [0.25]*3 and ts[1].tolist() == [[0.75]*2]*2

def test_has_bf16():
    "torch.cpu._is_avx512_bf16_supported, _is_amx_tile_supported: what the processor's list of features says"
    exists(torch.cpu, '_is_avx512_bf16_supported')
    exists(torch.cpu, '_is_amx_tile_supported')
    info = Path('/proc/cpuinfo')
    flags = info.read_text() if info.exists() else ''
    if 'flags' in flags: assert compat.has_bf16() == ('avx512_bf16' in flags or 'amx_tile' in flags)
    assert isinstance(compat.has_bf16(), bool)

def test_emulates_bf16(monkeypatch):
    "On x86 the opposite of `has_bf16`; of other processors nothing is known."
    monkeypatch.setattr('platform.machine', lambda: 'x86_64')
    assert compat.emulates_bf16() != compat.has_bf16()
    monkeypatch.setattr('platform.machine', lambda: 'arm64')
    assert not compat.emulates_bf16()

def test_has_vnni():
    "torch.cpu._is_vnni_supported: what the processor's list of features says"
    exists(torch.cpu, '_is_vnni_supported')
    info = Path('/proc/cpuinfo')
    flags = info.read_text() if info.exists() else ''
    if 'flags' in flags: assert compat.has_vnni() == ('avx512_vnni' in flags or 'avx_vnni' in flags)
    assert isinstance(compat.has_vnni(), bool)

def test_mkl_misses_avx512(monkeypatch):
    "torch.cpu.get_capabilities: an AMD processor with AVX-512, where products are made by MKL"
    known = torch.cpu.get_capabilities()
    exists(known, '__getitem__')
    info = Path('/proc/cpuinfo')
    text = info.read_text() if info.exists() else ''
    if 'vendor_id' in text:
        expected = 'AuthenticAMD' in text and 'avx512f' in text and torch.backends.mkl.is_available()
        assert compat.mkl_misses_avx512.__wrapped__() == expected
    with monkeypatch.context() as m:
        m.setattr(torch.cpu, 'get_capabilities', lambda: dict(cpu_name='AMD Ryzen 9 7950X', avx512_f=True))
        m.setattr('torch.backends.mkl.is_available', lambda: True)
        assert compat.mkl_misses_avx512.__wrapped__()
        m.delattr(torch.cpu, 'get_capabilities')
        assert not compat.mkl_misses_avx512.__wrapped__()

def test_mkl_misses_half(monkeypatch):
    "torch.cpu.get_capabilities: an AMD processor with the instruction that came to them with Zen 5"
    assert isinstance(torch.cpu.get_capabilities().get('avx512_vp2intersect', False), bool)
    monkeypatch.setattr(compat, 'mkl_misses_avx512', lambda: True)
    for name,new,expected in [('AMD EPYC', True, True), ('AMD EPYC', False, False), ('Intel(R) Xeon(R)', True, False)]:
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: dict(cpu_name=name, avx512_f=True, avx512_vp2intersect=new))
        assert compat.mkl_misses_half.__wrapped__() == expected

def test_functions_are_watched():
    "torch._C._len_torch_function_stack: modes that see each function, one in the other"
    assert not compat.functions_are_watched()
    with BaseTorchFunctionMode(), BaseTorchFunctionMode(): assert compat.functions_are_watched()
    assert not compat.functions_are_watched()

def test_onednn_linear():
    "torch.ops.mkldnn._linear_pointwise: `F.linear`, of transposed weights, too"
    if not torch.backends.mkldnn.is_available(): pytest.skip('a torch without oneDNN')
    exists(torch.ops.mkldnn, '_linear_pointwise')
    x,w,b = torch.randn(2, 3, 8), torch.randn(4, 8), torch.randn(4)
    for w in (w, torch.randn(8, 4).T):
        for b in (b, None): torch.testing.assert_close(compat.onednn_linear(x, w, b), torch.nn.functional.linear(x, w, b))

def test_onednn_packed():
    "torch.ops.mkldnn._reorder_linear_weight: the same product, whatever the number of rows"
    if not torch.backends.mkldnn.is_available(): pytest.skip('a torch without oneDNN')
    exists(torch.ops.mkldnn, '_reorder_linear_weight')
    w,b = torch.randn(40, 24), torch.randn(40)
    packed = compat.onednn_packed(w, 4)
    for n in (1, 4, 9):
        x = torch.randn(n, 1, 24)
        torch.testing.assert_close(compat.onednn_linear(x, packed, b), torch.nn.functional.linear(x, w, b))

def test_is_changed():
    "Module._forward_hooks, or a `forward` of its own: what a layer computes may be more than its class says"
    m = nn.Linear(2, 2)
    assert not compat.is_changed(m)
    handle = m.register_forward_hook(lambda *args: None)
    assert compat.is_changed(m)
    handle.remove()
    m.forward = m.forward
    assert compat.is_changed(m)

def test_is_followed():
    "torch._C._functorch.peek_interpreter_stack, _len_torch_dispatch_stack, _autograd._top_saved_tensors_default_hooks and forward_ad._current_level: whoever follows what is computed or kept is seen"
    from torch.autograd import forward_ad, graph
    from torch.utils.flop_counter import FlopCounterMode
    seen,x = [], torch.ones(2, 3)
    def look(t):
        seen.append(compat.is_followed())
        return t.square().sum()
    torch.vmap(look)(x), torch.func.grad(look)(x), torch.func.jvp(look, (x,), (x,))
    for mode in (forward_ad.dual_level(), FlopCounterMode(display=False), graph.saved_tensors_hooks(lambda t: t, lambda t: t), graph.save_on_cpu()):
        with mode: look(x)
        assert not compat.is_followed()
    torch.utils.checkpoint.checkpoint(look, x.requires_grad_(), use_reentrant=False).backward()
    assert seen == 9*[True]

def test_is_batched():
    "torch._C._functorch.is_functorch_wrapped_tensor and is_legacy_batchedtensor: tensors that stand for many"
    seen = []
    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x*2
        @staticmethod
        def backward(ctx, g):
            seen.append(compat.is_batched(g))
            return g*2
    x = torch.ones(2, 3, requires_grad=True)
    torch.autograd.grad(Look.apply(x), x, torch.ones(4, 2, 3), is_grads_batched=True)
    torch.autograd.grad(Look.apply(x), x, torch.ones(2, 3))
    torch.vmap(lambda t: seen.append(compat.is_batched(t)) or t)(x)
    assert seen == [True,False,True] and not compat.is_batched(x)

@pytest.mark.parametrize('approximate', ['none','tanh'])
def test_gelu_gradient(approximate):
    "torch.ops.aten.gelu_backward: what autograd makes of `F.gelu`, in the memory of `g` where that is allowed and nobody differentiates or maps it"
    exists(torch.ops.aten.gelu_backward, 'grad_input')
    x,g = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    expected, = torch.autograd.grad(nn.functional.gelu(x, approximate=approximate), x, g)
    f = partial(compat.gelu_gradient, approximate=approximate)
    with torch.no_grad():
        assert f(g, x).equal(expected) and f(g.clone(), x, over=True).equal(expected)
        spare = g.clone()
        assert f(spare, x, over=True).data_ptr() == spare.data_ptr() and not spare.equal(g)
        assert f(g, x).data_ptr() != g.data_ptr()
        assert torch.vmap(partial(f, over=True))(g, x).equal(expected)
        assert torch.vmap(partial(f, over=True), in_dims=(None,0))(g[0], x).shape == x.shape
    spare = g.clone()
    assert f(spare, x, over=True).requires_grad and spare.equal(g)

def test_Module():
    "compat.Module: set up before `__init__` runs, as fastai's"
    class Part(compat.Module):
        def __init__(self, n): self.weight = torch.nn.Parameter(torch.ones(n))
    assert isinstance(Part(3), torch.nn.Module) and [k for k,_ in Part(3).named_parameters()] == ['weight']

def test_is_fastais():
    "compat.is_fastais: fastai's tensors by the name of their class, without an import of fastai"
    from fastai.text.data import TensorText
    from fastai.torch_core import TensorBase
    assert all(compat.is_fastais(cls(torch.ones(2))) for cls in (TensorBase, TensorText))
    assert not compat.is_fastais(torch.ones(2)) and not compat.is_fastais(torch.nn.Parameter(torch.ones(2)))

def test_every_name_has_a_canary():
    "This file speaks of everything that `base.compat` offers"
    own = {n for n,o in vars(compat).items() if n[0] != '_' and getattr(o, '__module__', '') == compat.__name__}
    text = Path(__file__).read_text()
    missing = [n for n in own | {'HOOKS','tree_map'} if f'compat.{n}' not in text]
    assert not missing, f'no canary in this file for {missing}'
