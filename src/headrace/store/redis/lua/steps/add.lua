-- Write finished steps of running tasks. One whose name and number are known changes nothing.
-- ARGV: 1 token, then position, name and number packed, step packed, of each
-- Answer: positions refused, or -1: the token is unknown, all are.
local p = KEYS[1]
local held = c('HGET', p .. TOKENS, ARGV[1])
if not held then return -1 end
local no, spans = match(held, '^(%d+)(m?)')
local header = lease_header(p, no)
local total, times = c('LLEN', p .. LEASE .. no) - 1, settled_times(c('GET', p .. SETTLED_LOG .. no))
local refused = {}
for a = 2, #ARGV, 3 do
  local position = tonumber(ARGV[a])
  local index = position
  if spans ~= '' then index = index_of(header, index) end
  if not index or index < 0 or index >= total or times[index] then
    refused[#refused + 1] = position
  else
    local id = sub(c('LINDEX', p .. LEASE .. no, index + 1), 1, 16)
    local journal = p .. JOURNAL .. id
    local before = c('HLEN', journal)
    if c('HSETNX', journal, ARGV[a + 1], pack('>I4', before) .. ARGV[a + 2]) == 1 and before == 0 then c('SADD', p .. JOURNALS, id) end
  end
end
return refused
