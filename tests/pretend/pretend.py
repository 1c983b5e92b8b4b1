"""A device that poses as CUDA where torch is built without it: `cuda()` gives this process a `cuda:0`.
Its memory is the host's and its kernels are the CPU's, but it raises CUDA's errors where tensors or generators of two
devices meet, and `watch` counts where the host waits for it. So it shows what is on the wrong device. It cannot show
what a GPU's own kernels, streams and memory do: their rounding, what they draw from a seed, their speed, what is not
made for them. It takes the place of private names of torch, in Python and C++, as they are in version 2.13."""
import importlib, sys, torch
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from torch.utils.cpp_extension import load

source = Path(__file__).with_suffix('.cpp')
package = Path(__file__).parents[2]/'fastai_txf'
sites = Counter()                                           # (kind, op, place in the package) -> times
_ext = None

def built():
    "The extension, compiled at the first call, in torch's cache of them"
    version = torch.__version__.partition('+')[0].replace('.', '_')
    return load(f'pretend_cuda_{version}', [str(source)], extra_cflags=['-O0','-w'])

class Device:
    "As `torch.cuda.device`: there is only one"
    def __init__(self, device): pass
    def __enter__(self): return self
    def __exit__(self, *args): pass

def _name_it(generator):
    "`torch.cuda` as if it were built"
    always = lambda o: lambda *args, **kwargs: o
    cuda,no_lock = torch.cuda, dict(_lazy_init=always(None), _lazy_call=lambda f, **kwargs: f())
    has = dict(is_available=True, is_initialized=True, device_count=1, current_device=0, is_bf16_supported=True,
               get_device_capability=(8,0), get_device_name='pretend', memory_allocated=0, max_memory_allocated=0,
               memory_reserved=0, _is_in_bad_fork=False, is_current_stream_capturing=False,
               get_device_properties=SimpleNamespace(major=8, minor=0, name='pretend', total_memory=2**30))
    does = 'init','set_device','synchronize','empty_cache','reset_peak_memory_stats'
    vars(cuda).update({k:always(v) for k,v in has.items()} | {k:always(None) for k in does} | no_lock,
                      _initialized=True, default_generators=(generator,), device=Device)
    alike = {k:vars(cuda)[k] for k in ('current_device','device_count')}
    vars(sys.modules['torch.cuda.random']).update(no_lock | alike)
    for name in ('torch.cuda.amp.common','torch.amp.grad_scaler','torch.amp.autocast_mode'):
        importlib.import_module(name).amp_definitely_not_available = always(False)

def _store_on_it():
    "Storages of the device: torch makes them in C++ only where it is built with CUDA"
    import torch.storage as storage
    base = storage._StorageBase
    to,clone = storage._to,base.clone
    def copied(o, non_blocking=False):
        return torch.empty(o.nbytes(), dtype=torch.uint8, device='cuda').untyped_storage().copy_(o, non_blocking)
    def _to(self, device, non_blocking=False):
        here = torch.device(device).type != 'cuda' or self.device.type == 'cuda'
        return to(self, torch.device(device), non_blocking) if here else copied(self, non_blocking)
    def _clone(self): return copied(self) if self.device.type == 'cuda' else clone(self)
    storage._to,base.clone = _to,_clone

def cuda():
    "From here on this process has the device"
    global _ext
    if _ext: return
    if torch.cuda.is_available(): raise RuntimeError('there is a real one')
    _ext = built()
    assert _ext.built(), 'torch asked for CUDA before'
    _name_it(_ext.default_generator())
    _store_on_it()

def _place():
    "The innermost line of the package that is running"
    f = sys._getframe()
    while f and not Path(f.f_code.co_filename).is_relative_to(package): f = f.f_back
    return f and f'{Path(f.f_code.co_filename).relative_to(package).as_posix()}:{f.f_lineno} {f.f_code.co_name}'

def watch(on=True):
    "Count in `sites`, by place, the waits for the device, the copies to and from it, the CPU's numbers in its ops"
    def _seen(kind, what): sites[kind, what, _place()] += 1
    _ext.watch(_seen if on else None)
    if on: sites.clear()
