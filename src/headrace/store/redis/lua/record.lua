-- Write or delete a small named value if its version is still the expected one.
-- ARGV: 1 kind, 2 name, 3 expected version ('': there must be none), 4 '1' .. value, or '0' to delete
-- Answer: the new version, 0 for a deleted one, -1: it has another version.
local key, name = KEYS[1] .. RECORDS .. ARGV[1], ARGV[2]
local known = c('HGET', key, name)
local version = known and format('%.0f', (read('>d', known))) or ''
if version ~= ARGV[3] then return -1 end
if ARGV[4] == '0' then
  c('HDEL', key, name)
  return 0
end
-- One counter for all: a version is never used again.
local fresh = c('HINCRBY', KEYS[2], 'version', 1)
c('HSET', key, name, pack('>d', fresh) .. sub(ARGV[4], 2))
return fresh
