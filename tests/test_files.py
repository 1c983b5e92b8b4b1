"A file is whole or it is not there: full disks, kills, folders that may not be written, bytes that have changed"
import os, random, resource, signal, subprocess, sys, textwrap, time
from pathlib import Path
import numpy as np, pytest, torch
from hypothesis import HealthCheck, given, settings, strategies as st
from fastai_txf.all import LMDataLoaders, ResumeCallback, flat_ids, transformer_classifier_learner
from fastai_txf.base.files import load_tensors, replacing, save_tensors
from fixtures import SMALL, df, dls, dls_lm, make, quiet

def left(folder): return sorted(o.name for o in Path(folder).iterdir())

def in_process(code, **kw):
    "Run `code` in a process of its own, with this one's path"
    env = {**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path), 'OMP_NUM_THREADS':'1'}
    return subprocess.Popen([sys.executable, '-c', textwrap.dedent(code)], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)

_writers = '''
    import numpy as np, resource, signal, sys, torch
    from pathlib import Path
    from fastai_txf.base.files import replacing, save_tensors
    from fastai_txf.text.stream import flat_ids
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    def tensors(n): save_tensors(dict(w=torch.full((n,), float(n))), file)
    def raw(n):
        with replacing(file) as f: f.write(bytes([n % 251])*4*n)
    def ids(n): flat_ids([[n]*1000]*(n//1000), file, max_ram=1000)
    write = dict(tensors=tensors, raw=raw, ids=ids)[KIND]
    '''
each_writer = pytest.mark.parametrize('kind', ['tensors','raw','ids'])

def writer(kind, rest, file, **kw):
    return in_process(f"import sys; sys.argv = ['', {str(file)!r}]\nKIND = {kind!r}\n"
                      + textwrap.dedent(_writers) + textwrap.dedent(rest), **kw)

@each_writer
def test_full_disk(kind, tmp_path):
    "A file that may not grow: the old one is whole, no half one lies beside it, the error names it"
    file = tmp_path/'kept.bin'
    rest = '''
        write(20_000)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        old = file.read_bytes()
        try: write(60_000)
        except (OSError, RuntimeError) as e: print(type(e).__name__, e)
        else: print('no error')
        assert file.read_bytes() == old
        '''
    p = writer(kind, rest, file)
    out,err = p.communicate(timeout=120)
    assert p.returncode == 0, err
    assert 'kept.bin' in out and 'no error' not in out, out
    assert left(tmp_path) == ['kept.bin']

@each_writer
def test_killed(kind, tmp_path):
    "SIGKILL at random moments of writing: what is there under the name is a whole file"
    file,rng = tmp_path/'kept.bin', random.Random(0)
    for _ in range(3):
        p = writer(kind, "print('ready', flush=True)\nwhile True:\n    for n in (20_000, 50_000, 90_000): write(n)", file)
        assert p.stdout.readline() == 'ready\n', p.stderr.read()
        while not file.exists(): time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        p.send_signal(signal.SIGKILL)
        p.communicate()
        if kind == 'tensors':
            w = load_tensors(file, 'weights', 'write them again')['w']
            assert (w == len(w)).all() and len(w) in (20_000, 50_000, 90_000)
        else:
            data = np.fromfile(file, dtype=np.int32) if kind == 'ids' else np.fromfile(file, np.uint8)
            n = len(data) if kind == 'ids' else len(data)//4
            assert n in (20_000, 50_000, 90_000) and (data == (n if kind == 'ids' else n % 251)).all()

def test_missing_folder_and_directory(tmp_path):
    "A folder is made; a folder in the file's place is an error that names it"
    save_tensors(dict(w=1), tmp_path/'a'/'b'/'w.pth')
    assert load_tensors(tmp_path/'a'/'b'/'w.pth', 'weights', 'again') == dict(w=1)
    (tmp_path/'d.pth').mkdir()
    with pytest.raises(OSError, match='d.pth'): save_tensors(dict(w=1), tmp_path/'d.pth')
    assert left(tmp_path) == ['a','d.pth']

@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_read_only_folder(tmp_path):
    file = tmp_path/'w.pth'
    save_tensors(dict(w=1), file)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match='w.pth'): save_tensors(dict(w=2), file)
    finally: tmp_path.chmod(0o700)
    assert load_tensors(file, 'weights', 'again') == dict(w=1)

def test_permissions(tmp_path):
    "A new file has those that the process gives, an old one keeps its own"
    mask = os.umask(0o022)
    try: save_tensors(dict(w=1), tmp_path/'w.pth')
    finally: os.umask(mask)
    assert (tmp_path/'w.pth').stat().st_mode & 0o777 == 0o644
    (tmp_path/'w.pth').chmod(0o600)
    save_tensors(dict(w=2), tmp_path/'w.pth')
    assert (tmp_path/'w.pth').stat().st_mode & 0o777 == 0o600

def test_encoder_on_a_full_disk(make, tmp_path, monkeypatch):
    "`save_encoder` leaves the old file whole"
    learn = make()
    file = learn.save_encoder('enc')
    old = file.read_bytes()
    def full(o, f, *args, **kw):
        f.write(b'half')
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(OSError, match='enc.pth'): learn.save_encoder('enc')
    assert file.read_bytes() == old and left(file.parent) == ['enc.pth']

def test_mapped_ids_stay(tmp_path):
    "Ids that are mapped are read on while their file is written anew"
    file = tmp_path/'train.ids'
    ids = flat_ids([[7]*5000]*2, file, max_ram=1000).ids
    assert isinstance(ids, np.memmap)
    flat_ids([[9]*100]*20, file, max_ram=1000)
    assert (ids == 7).all() and len(ids) == 10_000

@pytest.fixture(scope='module')
def encoder(tmp_path_factory, dls):
    "The bytes of an encoder's file, a learner to load it, and what that answers"
    path = tmp_path_factory.mktemp('enc')
    learn = quiet(transformer_classifier_learner(dls, **SMALL, path=path))
    file = learn.save_encoder('enc')
    other = quiet(transformer_classifier_learner(dls, **SMALL, path=path))
    want = {k:v.clone() for k,v in learn.model.encoder.state_dict().items()}
    return file.read_bytes(), other, want, path

@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_flipped_bytes(encoder, data):
    "A changed encoder is refused by name, or what changed was no part of it: never another model"
    whole,learn,want,path = encoder
    n = data.draw(st.integers(1, 200))
    places = data.draw(st.lists(st.integers(0, len(whole)-1), min_size=n, max_size=n, unique=True))
    changed = bytearray(whole)
    for i in places: changed[i] ^= data.draw(st.integers(1, 255))
    file = path/'flipped.pth'
    file.write_bytes(changed)
    try: learn.load_encoder(file)
    except ValueError as e: assert 'flipped.pth' in str(e), e
    else:
        got = learn.model.encoder.state_dict()
        assert all(v.equal(want[k]) for k,v in got.items())

@pytest.mark.parametrize('cut', [0, 1, 100, 0.5, 0.99])
def test_truncated(encoder, cut):
    whole,learn,_,path = encoder
    file = path/'short.pth'
    file.write_bytes(whole[:int(len(whole)*cut) if cut < 1 and cut else int(cut)])
    with pytest.raises(ValueError, match='short.pth'): learn.load_encoder(file)

class Bomb:
    "Pickled by others, to run code where it is read"
    def __reduce__(self): return os.system, ('touch exploded',)

@pytest.mark.parametrize('what', [lambda: [1,2], lambda: dict(config={}), lambda: Bomb(), lambda: torch.nn.Linear(2, 2)])
def test_foreign_files(encoder, what, monkeypatch):
    "Something else that torch has saved: refused by name, and nothing of it is run"
    _,learn,_,path = encoder
    monkeypatch.chdir(path)
    torch.save(what(), path/'foreign.pth')
    with pytest.raises(ValueError, match='foreign.pth'): learn.load_encoder(path/'foreign.pth')
    assert not (path/'exploded').exists()
    (path/'text.pth').write_text('no archive at all')
    with pytest.raises(ValueError, match='text.pth'): learn.load_encoder(path/'text.pth')
