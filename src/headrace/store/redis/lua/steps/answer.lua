-- Remember the value of a signalled gate as a step of a running job. Needs the gate on this server.
-- ARGV: 1 token, 2 position, 3 gate, 4 '1': the journal is wanted, 5 name packed with the mark of a pair before it, 6 name and number packed,
--   7 the packed step up to its value, 8 what stands before the value, 9 the packed step from its value on
-- Answer: -1: refused; else the value or nothing, 1: the step is new, and the journal as in own.lua
local p = KEYS[1]
local held = c('HGET', p .. TOKENS, ARGV[1])
if not held then return -1 end
local no, spans = match(held, '^(%d+)(m?)')
local index = tonumber(ARGV[2])
if spans ~= '' then index = index_of(lease_header(p, no), index) end
if not index or index < 0 or index >= c('LLEN', p .. LEASE .. no) - 1 then return -1 end
if settled_times(c('GET', p .. SETTLED_LOG .. no))[index] then return -1 end
local id = sub(c('LINDEX', p .. LEASE .. no, index + 1), 1, 16)
local journal, whole = p .. JOURNAL .. id, ARGV[4] == '1'

local function has_name()
  for _, field in ipairs(c('HKEYS', journal)) do
    if sub(field, 1, #ARGV[5]) == ARGV[5] then return true end
  end
end

local function binary(bytes)
  local size = #bytes
  if size < 256 then return pack('>BB', 196, size) .. bytes end
  if size < 65536 then return pack('>BI2', 197, size) .. bytes end
  return pack('>BI4', 198, size) .. bytes
end

local value, stored = c('HGET', home(p) .. GATE .. ARGV[3], 'v'), 0
if value and not (whole and has_name()) then
  local step = ARGV[7] .. binary(ARGV[8] .. value) .. ARGV[9]
  stored = c('HSETNX', journal, ARGV[6], pack('>I4', c('HLEN', journal)) .. step)
  if stored == 1 then c('SADD', p .. JOURNALS, id) end
end
return {value, stored, whole and c('HVALS', journal) or {}}
