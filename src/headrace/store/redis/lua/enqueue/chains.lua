-- Enqueue, the part for runs that are chains: see lib/chains.lua.
local chain_links = {}  -- by queue, what LINKS is to say of them: see lib/links.lua

-- seq: a place in their lane, at: where their elements begin in ARGV.
block_chain = function(p, lane, from, to, seq, at)
  local first, count, words = own(from), to - from + 1, chain_links[p] or {}
  for a = 0, count - 1, 4000 do c('RPUSH', p .. CHAIN .. first, unpack(ARGV, at + a, at + min(count, a + 4000) - 1)) end
  c('HSET', p .. CHAINS, first, pack('>I2d', to, seq) .. lane)
  bump(p, 'b', count)
  chain_links[p] = words
  words[#words + 1] = pack('>I2I2c16I2d', from, to, string.rep('\0', 15) .. '\1', 8 + #lane, seq) .. lane
end
