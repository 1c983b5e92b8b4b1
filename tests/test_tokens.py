"Tokenizers: the same tokens as fastai's, texts put together again, and learners that take them along"
import subprocess, sys, pandas as pd, pytest
from fastai.text.all import SpacyTokenizer, TextDataLoaders, TokenizeWithRules, defaults, fix_html, load_learner, lowercase, replace_rep
from hypothesis import example, given, settings, strategies as st
from fastai_txf.data import TransformerDataLoaders, docstrings_df
from fastai_txf.tokens import BPETokenizer, CharTokenizer, FastSpacyTokenizer

# FastSpacyTokenizer

fai,fast,tiny = SpacyTokenizer(), FastSpacyTokenizer(), FastSpacyTokenizer(max_kept=3)

# What the rules and spaCy's special cases look at, so that they meet
pieces = st.sampled_from(['a','b','A','AB','Ab','aB','the','The','it','He','I','x','Σ','ΑΣ','İ','ß','é','日本','🙂','1','3','8','10','.','..','...',',','!','!!!','-','--','_','/','//','///','#','\\','\\n','\\"',
    ' ','  ','   ','\n','\n\n','\t','\r\n','\xa0','\u2003','\x1c','\u200b','<br />','<br /><br />','&amp;','&lt;','nbsp;','#39;','<unk>',' @-@ ','xxbos','xxrep','xxwrep','xxmaj','xxunk',"'","''",'’','"','(',')','((','))',':',';','=','*','@',
    "'s","n't","I'm","don't","it's",'a.m.','10a.m','i.e','Mr','Mrs.','co.',':)',':(',':-)',':))','(:','8)',':3','<3','o.O','(*_*)','http://a.b/c','www.x.com','a@b.co','U.S.','km','$','%','°','and','or','w','go go go ','No no no','ha ha'])
texts = st.one_of(st.lists(pieces, max_size=12).map(''.join), st.lists(pieces, max_size=10).map(' '.join), st.text(max_size=30))

def slow(texts, rules=None): return [list(o) for o in TokenizeWithRules(fai, rules=rules)(texts)]

@settings(max_examples=600)
@given(texts)
@example('fine:) )').via('a longer special case across a space wins')
@example('fine:) ok').via('and none does')
@example('aaab b b,').via('repeated words that repeated letters have left')
@example('\n///x').via('spaces that the rules put behind a newline')
@example(' b b b ').via('spaces that a rule looks for')
def test_same_as_fastai(text):
    "The tokens of fastai's default, rules applied by fastai, by the tokenizer, or none, and however little is kept"
    want = slow([text])
    assert list(fast.tokenize([text])) == want == list(tiny.tokenize([text]))
    assert [list(o) for o in TokenizeWithRules(fast)([text])] == want
    assert list(fast([text])) == list(tiny([text])) == [list(o) for o in fai([text])]

@settings(max_examples=100)
@given(st.lists(texts, max_size=5), st.sampled_from([[], [lowercase], [replace_rep, fix_html], [str.upper]]))
def test_other_rules(texts, rules):
    "Rules of one's own are applied as they are"
    assert list(fast.tokenize(texts, rules)) == slow(texts, rules)

def test_many_texts():
    "Docstrings, with their code and indentation, from an iterator"
    texts = docstrings_df(max_per_class=60, min_words=5).text.tolist()
    assert len(texts) > 200
    assert list(fast.tokenize(iter(texts))) == slow(texts)
