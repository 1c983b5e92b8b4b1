"Llama and its relatives, RoBERTa, DistilBERT and masked models of `transformers`: equal numbers with padding and with a cache, what is refused, and one table for both directions"
import sys; sys.modules.setdefault('torchvision', None)
from functools import partial
import pytest, torch, torch.nn as nn
from fastai_txf.generate.cache import KVCache
from fastai_txf.generate.decode import generate
from fastai_txf.learn.mlm import transformer_mlm_learner
from fastai_txf.model.config import make_config
from fastai_txf.model.models import TransformerClassifier, TransformerLM, TransformerMLM
from fastai_txf.model.stack import TransformerEncoder
from fastai_txf.share.hf import from_hf
from fastai_txf.share.hf_tables import inward, KINDS, MODELS, outward, rows
from fixtures import dls_lm, df, quiet

tr = pytest.importorskip('transformers')
close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, vocab_size=50, max_position_embeddings=40, intermediate_size=24)
ends = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)

def random(model, std=0.15):
    "`model` in `eval` with all of its weights random, biases and norms too, the same ones each time"
    torch.manual_seed(0)
    for k,p in model.named_parameters(): nn.init.normal_(p, mean=float(p.ndim==1 and k.endswith('weight')), std=std)
    return model.eval()

def hf(cls, config, **kw): return random(getattr(tr, cls)(getattr(tr, config)(**{**small, **ends, **kw})))
llama = partial(hf, 'LlamaForCausalLM', 'LlamaConfig')
mistral = partial(hf, 'MistralForCausalLM', 'MistralConfig', num_key_value_heads=2)
qwen2 = partial(hf, 'Qwen2ForCausalLM', 'Qwen2Config', num_key_value_heads=2)

def distilbert(cls, **kw):
    c = tr.DistilBertConfig(dim=16, n_layers=2, n_heads=4, hidden_dim=24, vocab_size=50, max_position_embeddings=40, pad_token_id=0, **kw)
    return random(getattr(tr, cls)(c))

def ragged(lens, pad=0):
    "Random ids with padding behind, and where they are real"
    real = torch.arange(max(lens)) < torch.tensor(lens)[:,None]
    return torch.randint(2, 50, real.shape).masked_fill(~real, pad), real

def agree(theirs, lens=(24,7,1,15), pad=0):
    "The same logits or vectors at every real token, or for every text"
    x,real = ragged(lens, pad)
    ours = from_hf(theirs)
    with torch.no_grad(): out,mine = theirs(x, attention_mask=real.long()),ours(x)
    out = out.logits if hasattr(out, 'logits') else out.last_hidden_state
    close(*((mine,out) if out.ndim==2 else (mine[real],out[real])))
    return ours

# Left to right

llamas = {
    'Llama':(llama, {}), 'tied':(llama, dict(tie_word_embeddings=True)), 'one key head':(llama, dict(num_key_value_heads=1)),
    'SmolLM2':(llama, dict(num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-5)), 'wide heads':(llama, dict(head_dim=10)),
    'other base':(llama, dict(rope_theta=500_000.)), 'attention_bias':(llama, dict(attention_bias=True)), 'mlp_bias':(llama, dict(mlp_bias=True, rms_norm_eps=1e-1)),
    'Mistral':(mistral, dict(sliding_window=None)), 'Mistral, window':(mistral, dict(sliding_window=6)), 'Mistral, wide window':(mistral, dict(sliding_window=400)),
    'Qwen2':(qwen2, {}), 'Qwen2, tied':(qwen2, dict(tie_word_embeddings=True)), 'Qwen2, window':(qwen2, dict(use_sliding_window=True, sliding_window=5, max_window_layers=0))}
each_llama = pytest.mark.parametrize('make,kw', llamas.values(), ids=llamas)

@each_llama
def test_llamas(make, kw):
    "The same logits, beside padding, and past a window"
    ours = agree(make(**kw))
    assert type(ours) is TransformerLM and ours.config.tie==kw.get('tie_word_embeddings', False)==(ours.head.weight is ours.encoder.emb.weight)

@each_llama
def test_llamas_write(make, kw):
    "Greedily the same tokens, with their cache and with ours, which gives the logits of one pass"
    theirs,x = make(**kw),torch.randint(2, 50, (3,4))
    ours = from_hf(theirs)
    want = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert len(want.unique()) > 5
    assert torch.equal(generate(ours, x, 30, temperature=0), want)
    cache = KVCache(ours.config.max_len)
    with torch.no_grad(): steps = [ours(t, cache) for t in want.split([10]+[1]*24, 1)]
    with torch.no_grad(): close(torch.cat(steps, 1), theirs(want).logits)

@pytest.mark.parametrize('name', ['Llama','Mistral','Qwen2'])
def test_llama_vectors(name):
    "The bare models are encoders"
    kw = dict(num_key_value_heads=2, **(dict(sliding_window=None) if name=='Mistral' else {}))
    assert type(agree(hf(f'{name}Model', f'{name}Config', **kw))) is TransformerEncoder

windows = {
    'Llama':lambda: llama(sliding_window=5), 'Llama, layers':lambda: llama(sliding_window=5, layer_types=['sliding_attention']*2),
    'Mistral, unused':lambda: mistral(sliding_window=5, use_sliding_window=False), 'Mistral, full':lambda: mistral(sliding_window=5, layer_types=['full_attention']*2),
    'Mistral, mixed':lambda: mistral(sliding_window=5, layer_types=['full_attention','sliding_attention']), 'Qwen2, unused':lambda: qwen2(use_sliding_window=False, sliding_window=5),
    'Qwen2, upper layers':lambda: qwen2(use_sliding_window=True, sliding_window=5, max_window_layers=2), 'Qwen2, layers':lambda: qwen2(use_sliding_window=True, sliding_window=5, layer_types=['sliding_attention']*2)}

@pytest.mark.parametrize('make', windows.values(), ids=windows)
def test_windows(make):
    "A setting that an architecture does not read is none: the same logits whatever the configuration says of windows"
    agree(make())

def test_llama_gradients():
    "The same gradients, rows in our order, so the same training"
    theirs,x = llama(num_key_value_heads=2),torch.randint(2, 50, (2,9))
    ours = from_hf(theirs)
    theirs(x).logits.square().sum().backward()
    ours(x).square().sum().backward()
    grads = {k:p.grad for k,p in theirs.named_parameters()}
    want,left = inward(grads, MODELS['LlamaForCausalLM'], ours.config)
    assert not left and want.keys()=={k for k,_ in ours.named_parameters()}
    for k,p in ours.named_parameters(): close(p.grad, want[k], atol=1e-4, rtol=1e-4)

def test_llama_double():
    "Nothing but the angles, which both have in fp32, is rounded on the way"
    theirs,x = llama().double(),torch.randint(2, 50, (2,12))
    with torch.no_grad(): torch.testing.assert_close(from_hf(theirs)(x), theirs(x).logits, atol=1e-6, rtol=1e-6)

# Both sides

def roberta(cls, **kw): return hf(cls, 'RobertaConfig', **{'pad_token_id':1, **kw})
berts = {'RobertaModel':(roberta,TransformerEncoder), 'RobertaForSequenceClassification':(roberta,TransformerClassifier), 'RobertaForMaskedLM':(roberta,TransformerMLM),
         'DistilBertModel':(distilbert,TransformerEncoder), 'DistilBertForSequenceClassification':(distilbert,TransformerClassifier), 'DistilBertForMaskedLM':(distilbert,TransformerMLM),
         'BertForMaskedLM':(partial(hf, config='BertConfig'),TransformerMLM)}
each_bert = pytest.mark.parametrize('cls', berts)

@each_bert
def test_berts(cls):
    "The same vectors, logits of classes or of tokens, beside padding"
    make,kind = berts[cls]
    theirs = make(cls, **(dict(num_labels=3) if 'Classification' in cls else {}))
    ours = agree(theirs, pad=theirs.config.pad_token_id)
    assert type(ours) is kind and ours.config.max_len==40-2*(make is roberta)

@pytest.mark.parametrize('cls', [k for k in berts if 'For' in k])
def test_padding_anywhere(cls):
    "Padding in front changes nothing, and a text alone is as it is beside others"
    theirs = berts[cls][0](cls)
    ours,pad = from_hf(theirs),theirs.config.pad_token_id
    x,real = ragged([9,4], pad)
    with torch.no_grad(): a,b = ours(nn.functional.pad(x, (5,0), value=pad)),ours(x)
    close(a, b)
    with torch.no_grad(): close(ours(x[1:,:4])[0], b[1] if b.ndim==2 else b[1,:4])

@pytest.mark.parametrize('tie', [True,False])
@pytest.mark.parametrize('cls', ['BertForMaskedLM','RobertaForMaskedLM','DistilBertForMaskedLM'])
def test_masked_heads(cls, tie):
    "A tied head keeps its bias, one of its own all of it"
    make,_ = berts[cls]
    theirs = make(cls, tie_word_embeddings=tie)
    ours = agree(theirs, pad=theirs.config.pad_token_id)
    assert ours.config.tie==tie==(ours.head.weight is ours.encoder.emb.weight) and ours.head.bias.abs().min() > 0

def test_masked_learner(dls_lm):
    "A learner of masked words starts from it, head and all, and learns"
    vocab = dls_lm.vocab
    theirs = hf('BertForMaskedLM', 'BertConfig', vocab_size=len(vocab), pad_token_id=1)
    ours = from_hf(theirs)
    learn = quiet(transformer_mlm_learner(dls_lm, pretrained=ours, mask_tok='xxunk'))
    for k,v in ours.state_dict().items(): assert torch.equal(learn.model.state_dict()[k], v), k
    learn.unfreeze()
    before = learn.validate()[0]
    learn.fit(1, 1e-2)
    assert learn.validate()[0] < before

def test_own_masked_head():
    "`mlm_head` makes a masked model with BERT's transform, its activation that of the feed-forward"
    m = TransformerMLM('bert', vocab_sz=30, d_model=16, n_heads=2, mlm_head=True, ff='relu', max_len=8)
    assert isinstance(m.transform[1], nn.ReLU) and isinstance(m.transform[2], nn.LayerNorm) and m.transform[2].eps==1e-12 and not m.head.bias.any()
    assert not dict(TransformerMLM('bert', vocab_sz=30, d_model=16, n_heads=2, max_len=8).transform.named_parameters())
    with pytest.raises(ValueError, match="pooler='gelu' is not one of"): make_config(pooler='gelu')

# What is refused

refused = {
    'rope_scaling':(lambda: llama(rope_parameters=dict(rope_type='linear', factor=2., rope_theta=1e4)), 'rope_scaling=.*linear'),
    'llama3':(lambda: llama(rope_parameters=dict(rope_type='llama3', factor=8., low_freq_factor=1., high_freq_factor=4., original_max_position_embeddings=16, rope_theta=1e4)), 'rope_scaling=.*llama3'),
    'mixed windows':(lambda: qwen2(use_sliding_window=True, sliding_window=5, max_window_layers=1), "layer_types=.*full_attention.*sliding_attention"),
    'gelu':(lambda: llama(hidden_act='gelu'), "hidden_act='gelu' is none .* silu"),
    'no padding':(lambda: roberta('RobertaModel', pad_token_id=None), 'pad_token_id=None: a RoBERTa counts positions'),
    'decoder':(lambda: roberta('RobertaModel', is_decoder=True), 'is_decoder=True'),
    'Llama that sees ahead':(lambda: llama(is_causal=False), 'is_causal=False .* only True'),
    'Qwen2 that sees ahead':(lambda: qwen2(is_causal=False), 'is_causal=False .* only True'),
    'BERT that does not':(lambda: hf('BertModel', 'BertConfig', is_causal=True), 'is_causal=True .* only False'),
    'RoBERTa that does not':(lambda: roberta('RobertaModel', is_causal=True), 'is_causal=True'),
    'DistilBERT that does not':(lambda: distilbert('DistilBertModel', is_causal=True), 'is_causal=True'),
    'head':(lambda: roberta('RobertaForMaskedLM', hidden_act='relu'), "hidden_act='relu'.*always 'gelu'"),
    'unknown':(lambda: hf('GemmaForCausalLM', 'GemmaConfig', head_dim=4, num_key_value_heads=1), 'GemmaForCausalLM: give a GPT2LMHeadModel.*LlamaForCausalLM.*DistilBertForMaskedLM'),
    'choice':(lambda: roberta('RobertaForMultipleChoice'), 'RobertaForMultipleChoice.*such as its `.roberta`')}

@pytest.mark.parametrize('make,match', refused.values(), ids=refused)
def test_refused(make, match):
    "Settings and architectures without an equivalent are named"
    with pytest.raises(ValueError, match=match): from_hf(make())

def test_changed_by_hand():
    "So is a part that the configuration does not know of"
    theirs = llama()
    theirs.model.layers[1].mlp.act_fn = nn.GELU()
    with pytest.raises(ValueError, match='layers.1.mlp.act_fn'): from_hf(theirs)
    theirs = llama()
    theirs.model.layers[0].self_attn.q_proj = nn.Linear(16, 16)
    with pytest.raises(ValueError, match='layers.0.self_attn.q_proj'): from_hf(theirs)
    for theirs,match in ((llama(), 'model.layers.1 is not there, but by the configuration LlamaDecoderLayer'), (llama(num_hidden_layers=3), 'model.layers.1 is not there')):
        theirs.model.layers = theirs.model.layers[:1]
        with pytest.raises(ValueError, match=match): from_hf(theirs)

# The table

@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('kw', [{}, dict(n_kv_heads=2), dict(d_head=6)], ids=str)
def test_both_directions(name, kw):
    "Out and in again is the identity, bit by bit, and uses each name once"
    e = MODELS[name]
    c = make_config(**{**e.family.fixed, **e.fixed, 'ff':[*e.family.acts.values()][0]}, vocab_sz=30, d_model=16, n_heads=4, pad_idx=1, **kw)
    pre = 'encoder.' if e.arch is TransformerEncoder else ''
    state = {pre+k:torch.randn_like(v) for k,v in e.arch(c).state_dict().items()}
    theirs,left = outward(state, e, c)
    again,rest = inward(theirs, e, c)
    assert not left and not rest and again.keys()==state.keys() and all(torch.equal(again[k], v) for k,v in state.items())
    names = [t for _,ts,_ in rows(e, c.n_layers) for t in ts]
    assert len(names)==len({*names}) and {k for _,_,k in rows(e, c.n_layers)} <= KINDS.keys()

@pytest.mark.parametrize('name', [n for n in MODELS if not n.startswith(('Bert','Roberta'))])
def test_in_and_out(name):
    "In and out again, too, is the identity where no token types are added to the positions"
    kw = dict(dim=16, n_layers=2, n_heads=4, hidden_dim=24, vocab_size=50) if name.startswith('Distil') else dict(small, **ends, num_key_value_heads=2)
    theirs = random(getattr(tr, name)(getattr(tr, name).config_class(**kw)))
    ours,e = from_hf(theirs),MODELS[name]
    pre = 'encoder.' if e.arch is TransformerEncoder else ''
    back,_ = outward({pre+k:v for k,v in ours.state_dict().items()}, e, ours.config)
    want = {(f'{e.family.base}.' if pre else '')+k:v for k,v in theirs.state_dict().items()}
    assert all(torch.equal(back[k], v) for k,v in want.items())
    assert not [k for k,v in back.items() if k not in want and v.any()]
