"A headless Chromium, spoken to through its driver with the standard library alone"
import base64, contextlib, http.server, json, shutil, socket, subprocess, threading, time, urllib.request
from functools import partial

def missing():
    "What there is no browser for, or an empty string."
    lost = [o for o in ('chromium','chromedriver') if not shutil.which(o)]
    return f"{' and '.join(lost)} missing: apt-get install chromium chromium-driver" if lost else ''

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass

@contextlib.contextmanager
def served(folder):
    "The address of a folder, served while the block runs."
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try: yield f'http://127.0.0.1:{server.server_port}'
    finally: server.shutdown()

class Browser:
    "One window. Whatever is not on this machine cannot be reached from it."
    def __init__(self):
        self.port = free_port()
        self.driver = subprocess.Popen(['chromedriver', f'--port={self.port}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        args = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars',
                '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1']
        caps = {'browserName':'chrome', 'goog:loggingPrefs':{'browser':'ALL'},
                'goog:chromeOptions':{'args':args, 'binary':shutil.which('chromium')}}
        self.wait()
        self.id = self.ask('POST', '', {'capabilities':{'alwaysMatch':caps}}, session=False)['sessionId']

    def wait(self, seconds=60):
        "Until the driver listens."
        end = time.monotonic() + seconds
        while True:
            try: return socket.create_connection(('127.0.0.1', self.port), 1).close()
            except OSError:
                if time.monotonic() > end: raise
                time.sleep(0.1)

    def ask(self, method, path, body=None, session=True):
        url = f"http://127.0.0.1:{self.port}/session{f'/{self.id}' if session else ''}{path}"
        req = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None, {'Content-Type':'application/json'}, method=method)
        with urllib.request.urlopen(req, timeout=120) as r: return json.load(r)['value']

    def open(self, url, width, height=900):
        "Go to a page at this width."
        size = dict(width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask('POST', '/goog/cdp/execute', {'cmd':'Emulation.setDeviceMetricsOverride', 'params':size})
        self.ask('POST', '/url', {'url':url})

    def run(self, script): return self.ask('POST', '/execute/sync', {'script':script, 'args':[]})
    def console(self):
        "What has been said on the console since it was asked last: errors and warnings."
        return [o['message'] for o in self.ask('POST', '/se/log', {'type':'browser'}) if o['level'] in ('SEVERE','WARNING')]

    def screenshot(self): return base64.b64decode(self.ask('GET', '/screenshot'))

    def close(self):
        with contextlib.suppress(OSError): self.ask('DELETE', '')
        self.driver.terminate()
        self.driver.wait()
