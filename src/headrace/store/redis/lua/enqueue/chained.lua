-- Enqueue, behind the part that writes: the chains are found from here on. The call is new, so LINKS has nothing of it yet.
for p, words in pairs(chain_links) do
  c('HSET', p .. LINKS, prefix, table.concat(words))
  c('HSET', p .. TOKENS, 'links', 1)
end
