"The page of a published model: answers, escaping, its own origin alone"
import base64, hashlib, json, os, re, shutil, socket, subprocess, threading, time, urllib.request
import pytest, torch
from html import escape, unescape
from pathlib import Path
from fastai_txf import app
from fastai_txf.app import HEADERS, main, make_app
from fastai_txf.model.models import Seq2SeqTransformer, TransformerClassifier, TransformerLM, TransformerMLM
from fastai_txf.share.predictor import GapPredictor, LabelPredictor, PairPredictor, TensorCodec, WritingPredictor
from fastai_txf.text.tokens import CharTokenizer

pytest.importorskip('fasthtml')
from starlette.testclient import TestClient

VOCAB = ['xxunk','xxpad','xxbos','xxeos','xxfake',*'▁abcdefghijklmnopqrstuvwxyz<>/()!&"\'=\n']
SMALL = dict(vocab_sz=len(VOCAB), d_model=16, n_heads=2, n_layers=1)
EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;</textarea>'

def predictor(kind):
    torch.manual_seed(0)
    codec = TensorCodec(VOCAB, CharTokenizer(), steps=['ends'] if kind == 'seq2seq' else [])
    config = dict(kind='classifier' if kind in ('category','multi','regression') else kind)
    if kind == 'lm': return WritingPredictor(TransformerLM(**SMALL).eval(), [codec], {}, config)
    if kind == 'mlm': return GapPredictor(TransformerMLM(**SMALL).eval(), [codec], dict(mask_idx=4, special=[0,1,2,3,4]), config)
    if kind == 'seq2seq': return PairPredictor(Seq2SeqTransformer(**SMALL).eval(), [codec]*2, dict(ratio=2.), config)
    labels = dict(kind=kind, names=None if kind == 'regression' else ['neg','<i>pos</i>'], threshold=0.5)
    return LabelPredictor(TransformerClassifier(**SMALL, n_out=1 if kind == 'regression' else 2).eval(), [codec], labels, config)

def client(kind): return TestClient(make_app(predictor(kind), '<b>title</b>'), base_url='http://127.0.0.1')
kinds = 'category','multi','regression','lm','mlm','seq2seq'

@pytest.mark.parametrize('kind', kinds)
def test_nothing_from_elsewhere(kind):
    "The page loads nothing, says so in its headers, and runs only the script whose hash is in them"
    r = client(kind).get('/')
    assert r.status_code == 200 and not re.search(r'src=|href=|url\(|https?:|@import|\son\w+=', r.text)
    assert r.headers['content-security-policy'] == HEADERS['Content-Security-Policy'] and 'set-cookie' not in r.headers
    assert r.text.count('<script') == (kind == 'lm') and '<b>title' not in r.text
    assert r.text.lower().startswith('<!doctype html>') and r.text.lower().count('<!doctype') == 1
    if kind == 'lm':
        body = re.search(r'<script>(.*)</script>', r.text, re.S)[1]
        assert f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in HEADERS['Content-Security-Policy']

@pytest.mark.parametrize('kind', kinds)
def test_escaped(kind):
    "Whatever is typed in comes back as text: in the box, among the words, in an error"
    web = client(kind)
    for text in (EVIL, EVIL + ' ___', '___"><svg onload=alert(1)>'):
        html = web.post('/', data=dict(text=text, n_words='3', seed='1', top_k=EVIL if text == EVIL else '')).text
        outside = html.replace(re.search(r'<script>.*?</script>', html, re.S)[0], '', 1) if kind == 'lm' else html
        assert not re.search(r'<script|<img|<svg|<i>|</textarea>.*</textarea>', outside, re.S)
        assert unescape(re.search(r'<textarea[^>]*>(.*?)</textarea>', html, re.S)[1]) == text

def test_classify():
    p,web = predictor('category'), client('category')
    html = unescape(web.post('/', data=dict(text='a warm film')).text)
    best = p.predict('a warm film')
    assert f'<h2>{best}</h2>' in html and f'{p.probs("a warm film").max():.3f}' in html
    words = re.findall(r'<span class="word" title="([^"]*)" style="background-color:rgba[^>]*>([^<]*)<', html)
    assert [w for _,w in words] == ['a','warm','film']
    i = p.labels['names'].index(best)
    def odds(t): return float(p.logits(t)[i] - p.logits(t)[1-i])
    assert abs(float(words[0][0]) - (odds('a warm film') - odds(' warm film'))) < 1e-2

def test_stream():
    "The pieces are what `predict` adds; what is out of range is an error before the first piece"
    p,web = predictor('lm'), client('lm')
    r = web.post('/stream', data=dict(text='a film', n_words='4', seed='2', temperature='0.7', top_k='9'))
    assert r.headers['content-type'].startswith('text/plain')
    assert 'a film' + r.text == p.predict('a film', n_words=4, seed=2, temperature=0.7, top_k=9)
    for bad in (dict(top_p='7'), dict(temperature='-1'), dict(n_words='0'), dict(n_words='999999'), dict(seed='x'), dict(seed='9'*30), dict(temperature='nan'), dict(top_k='1e9')):
        r = web.post('/stream', data=dict(text='a', **bad))
        assert r.status_code == 400 and next(iter(bad)) in r.text

def test_other_answers():
    for threshold in (0., 0.5, 1.):
        p = predictor('multi')
        p.labels['threshold'] = threshold
        html = TestClient(make_app(p), base_url='http://127.0.0.1').post('/', data=dict(text='a')).text
        assert f"<h2>{escape(', '.join(p.predict('a')) or 'none of the labels')}</h2>" in html
    assert f'{predictor("regression").predict("a film"):.4g}' in client('regression').post('/', data=dict(text='a film')).text
    assert 'has no gap' in client('mlm').post('/', data=dict(text='a film')).text
    html = unescape(client('seq2seq').post('/', data=dict(text='a film')).text)
    assert predictor('seq2seq').predict('a film').strip() in html

def test_several_numbers():
    "Each is as short as one alone is, and the note says which of them the colours are about"
    torch.manual_seed(0)
    codec,labels = TensorCodec(VOCAB, CharTokenizer()), dict(kind='regression', names=None, threshold=0.5)
    p = LabelPredictor(TransformerClassifier(**SMALL, n_out=3).eval(), [codec], labels, dict(kind='classifier'))
    html = TestClient(make_app(p), base_url='http://127.0.0.1').post('/', data=dict(text='a film')).text
    numbers = p.predict('a film')
    assert f"<h2>{', '.join(f'{v:.4g}' for v in numbers)}</h2>" in html
    assert f'blue words raise number {numbers.index(max(numbers))+1}, red' in html

def test_words_beyond_the_coloured_ones(monkeypatch):
    "A word that was not left out is not said to change nothing"
    monkeypatch.setattr(app, 'MOST_WORDS', 2)
    def note(text): return 'The words after the first 2 have no colour' in client('category').post('/', data=dict(text=text)).text
    assert note('a warm film') and not note('a film')

def test_what_is_no_whole_number():
    r = client('lm').post('/stream', data=dict(text='a', n_words='2.5'))
    assert r.status_code == 400 and "n_words='2.5' is no whole number" in r.text

BEFORE = '''
const box = {querySelectorAll: () => [{value:'a film'}], addEventListener: (_, f) => box.submit = () => f({preventDefault() {}})};
const page = {form:box, '#out':{dataset:{}, textContent:''}}, streams = [];
globalThis.document = {querySelector: o => page[o]};
globalThis.FormData = class { *[Symbol.iterator]() { yield ['text', 'a film']; } };
globalThis.fetch = async () => new Response(new ReadableStream({start: c => streams.push(c), cancel: () => streams.push('cancelled')}));
'''
AFTER = '''
const tick = () => new Promise(f => setTimeout(f, 20)), say = (i, s) => streams[i].enqueue(new TextEncoder().encode(s));
(async () => {
  box.submit(); await tick(); say(0, ' one'); await tick();
  box.submit(); await tick(); say(1, ' two'); say(0, ' three'); await tick(); say(1, ' four'); streams[1].close(); await tick();
  console.log(JSON.stringify([out.textContent, out.dataset.done, streams[2]]));
  globalThis.fetch = async () => { throw new TypeError('gone'); };
  box.submit(); await tick();
  console.log(JSON.stringify([out.textContent, out.className, out.dataset.done || 'open']));
})();
'''

def test_script():
    "A second text takes the place of one that is still written, and a server that is gone is told of"
    if not shutil.which('node'): pytest.skip('there is no node here')
    res = subprocess.run(['node','-e',BEFORE + app._script + AFTER], capture_output=True, encoding='utf-8', timeout=60)
    first,second = map(json.loads, res.stdout.splitlines())
    assert first == ['a film two four','yes','cancelled'], res.stderr
    assert second[0].startswith('a film … broken off') and second[1:] == ['error','open']

@pytest.mark.parametrize('kind', ['category','lm','seq2seq','mlm'])
def test_odd_input(kind):
    "Empty, blank, null bytes, emoji, no field at all: an answer or a clear error, never a crash"
    web = client(kind)
    for data in (dict(text=''), dict(text='  '), dict(text='\0'), dict(text='🙂 שלום'), {}, dict(text='a '*3000)):
        assert web.post('/', data={**data, 'n_words':'2'}).status_code in (200,400)

@pytest.mark.parametrize('kind', ['category','lm','mlm'])
@pytest.mark.parametrize('charset,half', [('unicode_escape', br'\ud83d'), ('utf-7', b'+2D0-')])
def test_half_a_sign(kind, charset, half):
    "A request whose charset makes half of a sign is an error in words: no page can hold it"
    body = b'--xx\r\nContent-Disposition: form-data; name="text"\r\n\r\n' + half + b' ___\r\n--xx--\r\n'
    for url in ('/','/stream')[:1+(kind == 'lm')]:
        r = client(kind).post(url, content=body, headers={'content-type':f'multipart/form-data; boundary=xx; charset={charset}'})
        assert r.status_code == 400 and 'half of a sign' in r.text

def test_only_this_page():
    "Another host, another origin and too much text are refused"
    app = make_app(predictor('lm'))
    assert TestClient(app, base_url='http://evil.example').get('/').status_code == 400
    web = client('lm')
    for url in ('/','/stream'):
        assert web.post(url, data=dict(text='a'), headers=dict(origin='http://evil.example')).status_code == 400
        assert web.post(url, data=dict(text='a', n_words='1'), headers=dict(origin='http://127.0.0.1')).status_code == 200
        assert web.post(url, data=dict(text='a'*3_000_000)).status_code == 400
    assert client('category').post('/stream', data=dict(text='a')).status_code in (404,405)

@pytest.mark.parametrize('kind', ['category','lm'])
def test_no_field(kind):
    "A request without the field of the text is told so, and not answered for the empty text"
    web = client(kind)
    for url in ('/','/stream')[:1+(kind == 'lm')]:
        for body in (dict(json=dict(text='a film')), dict(data=dict(txt='a film')), dict(files=dict(text=b'a film')), {}):
            r = web.post(url, **body)
            assert r.status_code == 400 and "there is no field 'text' in the request: send a form" in unescape(r.text) and '<h2' not in r.text

def test_limit():
    "A text of any size below the limit that the error names is read"
    web = client('mlm')
    assert 'has no gap' in web.post('/', data=dict(text='a'*1_900_000)).text
    assert 'at most 2,000,000 bytes' in web.post('/', data=dict(text='a'*2_000_000)).text

def test_bad_folder(capsys, tmp_path):
    "No folder, or one that is no published model, is one line and no traceback"
    with pytest.raises(SystemExit) as e: main([str(tmp_path/'none')])
    assert e.value.code == 1 and 'there is no folder' in capsys.readouterr().err

def test_columns():
    "A box for each column where there are several"
    p = predictor('category')
    codec = TensorCodec([*VOCAB,'xxfld','1','2'], CharTokenizer(), text_cols=['title','<i>body'], marked=True)
    p = LabelPredictor(TransformerClassifier(**{**SMALL, 'vocab_sz':len(codec.vocab)}, n_out=2).eval(), [codec], p.labels, p.config)
    page = TestClient(make_app(p), base_url='http://127.0.0.1')
    assert re.findall('name="(text.?)"', page.get('/').text) == ['text1','text2']
    assert "no field 'text2'" in unescape(page.post('/', data=dict(text1='a film')).text)
    got = page.post('/', data=dict(text1='a film', text2='it was'))
    want = p.predict({'title':'a film', '<i>body':'it was'})
    assert got.status_code == 200 and f'<h2>{escape(want)}</h2>' in got.text and '>a film</textarea>' in got.text and '<i>' not in got.text

def test_edited_card(monkeypatch, tmp_path):
    "A published model whose card was edited has its page"
    from test_publish import stirred, tasks
    folder,seen = stirred(tasks['one']()).publish(tmp_path/'m', trained=True),[]
    (folder/'README.md').write_text('my own card')
    monkeypatch.setattr('uvicorn.run', lambda app, **kw: seen.append(app))
    main([str(folder)])
    assert TestClient(seen[0], base_url='http://127.0.0.1').post('/', data=dict(text='warm')).status_code == 200

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

class Browser:
    "Headless Chromium through its driver, in the W3C's protocol"
    def __init__(self, chromium):
        self.port = free_port()
        self.driver = subprocess.Popen(['chromedriver', f'--port={self.port}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f'http://127.0.0.1:{self.port}/session'
        options = dict(binary=chromium, args=['--headless=new','--no-sandbox','--disable-gpu','--disable-dev-shm-usage','--window-size=900,700'])
        wanted = dict(capabilities=dict(alwaysMatch={'browserName':'chrome', 'goog:chromeOptions':options, 'goog:loggingPrefs':dict(browser='ALL')}))
        wait_for(lambda: self.ask('', wanted, self.url[:-8] + '/status', 'GET')['ready'])
        self.url += '/' + self.ask('', wanted)['sessionId']

    def ask(self, path, data=None, url=None, method=None):
        body = None if data is None and method is None else json.dumps(data or {}).encode()
        req = urllib.request.Request((url or self.url) + path, body if method != 'GET' else None, {'Content-Type':'application/json'}, method=method)
        with urllib.request.urlopen(req, timeout=120) as r: return json.load(r)['value']

    def run(self, script): return self.ask('/execute/sync', dict(script=script, args=[]))
    def open(self, url): self.ask('/url', dict(url=url))
    def find(self, css): return '/element/' + next(iter(self.ask('/element', dict(using='css selector', value=css)).values()))
    def type(self, css, text): self.ask(self.find(css) + '/value', dict(text=text))
    def click(self, css): self.ask(self.find(css) + '/click', {})
    def shoot(self, path): Path(path).write_bytes(base64.b64decode(self.ask('/screenshot')))

    def close(self):
        try: self.ask('', method='DELETE', url=self.url)
        finally:
            self.driver.terminate()
            self.driver.wait()

def wait_for(f, seconds=120):
    "What `f` gives, once it is true"
    end = time.time() + seconds
    while time.time() < end:
        try:
            if res := f(): return res
        except (OSError,KeyError): pass
        time.sleep(0.2)
    raise AssertionError('it did not happen in time')

@pytest.mark.slow
def test_browser(tmp_path):
    "In a real browser: the page classifies, streams piece by piece, and shows `<script>` as text"
    import uvicorn
    chromium = next(filter(None, map(shutil.which, ('chromium','chromium-browser','google-chrome'))), None)
    if not chromium or not shutil.which('chromedriver'): pytest.skip('there is no chromium with its driver here')
    shots = Path(os.environ.get('SCREENSHOTS', tmp_path))
    browser,servers = Browser(chromium), {}
    try:
        for kind in ('category','lm','seq2seq'):
            port = free_port()
            server = servers[kind] = uvicorn.Server(uvicorn.Config(make_app(predictor(kind), kind), host='127.0.0.1', port=port, log_level='error'))
            threading.Thread(target=server.run, daemon=True).start()
            wait_for(lambda: server.started)
            browser.open(f'http://127.0.0.1:{port}/')
            browser.run('window.alert = () => { document.title = "hacked" }')
            browser.type('textarea', 'a warm <script>alert(1)</script><img src=x onerror=alert(1)> film')
            if kind == 'lm':
                browser.run('document.querySelector("[name=n_words]").value = 6; document.querySelector("[name=seed]").value = 1')
            browser.click('button')
            if kind == 'lm': wait_for(lambda: browser.run('return document.querySelector("#out").dataset.done') == 'yes')
            else: wait_for(lambda: browser.run('return document.querySelectorAll("h2, .text").length'))
            text = browser.run('return document.body.innerText')
            assert '<script>alert(1)</script>' in text.replace(' ', '').replace('\n', '') or kind == 'category'
            assert browser.run('return document.querySelectorAll("script").length') == (kind == 'lm') and browser.run('return document.images.length') == 0
            assert browser.run('return document.title') == kind
            if kind == 'category': assert browser.run('return document.querySelectorAll(".word").length') > 5
            if kind == 'lm': assert len(browser.run('return document.querySelector("#out").textContent')) > len('a warm <script>alert(1)</script>')
            browser.shoot(shots/f'{kind}.png')
    finally:
        for server in servers.values(): server.should_exit = True
        browser.close()
