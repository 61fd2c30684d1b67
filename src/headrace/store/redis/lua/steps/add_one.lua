-- Write one finished step of a running job: what most calls write. Like enqueue/one.lua it has neither a head nor a function.
-- ARGV: 1 token, 2 position, 3 name and number packed, 4 step packed
-- Answer: 1: the step is stored, now or before; 0: refused; -1: the lease is in parts, and the general script must look
local c, p, position = redis.call, KEYS[1], tonumber(ARGV[2])
local held = c('HGET', p .. TOKENS, ARGV[1])
if not held then return 0 end
local no, spans = string.match(held, '^(%d+)(m?)')
if spans ~= '' or c('EXISTS', p .. SETTLED_LOG .. no) == 1 then return -1 end
local el = position >= 0 and c('LINDEX', p .. LEASE .. no, position + 1)
if not el or el == '' then return 0 end
local id = string.sub(el, 1, 16)
local journal = p .. JOURNAL .. id
local before = c('HLEN', journal)
if c('HSETNX', journal, ARGV[3], struct.pack('>I4', before) .. ARGV[4]) == 1 and before == 0 then c('SADD', p .. JOURNALS, id) end
return 1
