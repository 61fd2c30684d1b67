-- The keys of a queue without jobs. Needs no other part.
local function drop(p)
  local keys = {}
  for key in string.gmatch('d h b x z S s o w E t c v q j J p F H f G k kd kc ki e m n nx N C Q', '%S+') do keys[#keys + 1] = p .. key end
  -- On a cluster a queue has copies of the rules and pauses, and indexes of its own, which are empty with it.
  if not HOME then
    for key in string.gmatch('#r #t #u #w #q #o', '%S+') do keys[#keys + 1] = p .. key end
  end
  c('UNLINK', unpack(keys))
end
