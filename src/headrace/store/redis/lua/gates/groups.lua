-- Ids of gates with a label, newest first. Reads only.
-- ARGV: 1 '1' .. tenant, or '0': of all, 2 bound by name from above, 3 at most
local g = home(KEYS[1])
local key = byte(ARGV[1]) == 49 and g .. TENANT_GROUPS .. sub(ARGV[1], 2) or g .. GROUPS
return c('ZREVRANGEBYLEX', key, ARGV[2], '-', 'LIMIT', 0, ARGV[3])
